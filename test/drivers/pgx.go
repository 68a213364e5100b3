// pgx 4.  Behind a pooler it uses the simple protocol.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

var ctx = context.Background()

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	config, err := pgx.ParseConfig("")
	check(err)
	config.PreferSimpleProtocol = os.Getenv("POOLED") != ""
	conn, err := pgx.ConnectConfig(ctx, config)
	check(err)
	defer conn.Close(ctx)

	var count, id, first, second int64
	var state, response, handle, request string
	tx, err := conn.Begin(ctx)
	check(err)
	_, err = tx.Exec(ctx, "INSERT INTO task (request) VALUES ('SELECT ''lost''')")
	check(err)
	check(tx.Rollback(ctx))
	check(conn.QueryRow(ctx, "SELECT count(*) FROM task WHERE request ~ 'lost'").Scan(&count))
	fmt.Println("rolled back", count)

	check(conn.QueryRow(ctx, "INSERT INTO task (request, input) VALUES ($1, $2) RETURNING id",
		"SELECT (pg_task_input() ->> 'a')::int * 7", `{"a": 6}`).Scan(&id))
	for state = "PLAN"; state == "PLAN" || state == "WORK"; {
		check(conn.QueryRow(ctx, "SELECT state FROM pg_task_wait(ARRAY[$1::bigint])", id).Scan(&state))
	}
	check(conn.QueryRow(ctx, "SELECT response FROM task WHERE id = $1", id).Scan(&response))
	fmt.Println("done", response)

	rows, err := conn.Query(ctx, "SELECT * FROM task")
	check(err)
	columns := len(rows.FieldDescriptions())
	for rows.Next() {
		_, err = rows.Values()
		check(err)
	}
	check(rows.Err())
	fmt.Println("columns", columns)

	debounce := `INSERT INTO task (key, request, dt)
		VALUES ($1, 'SELECT 1', now() + interval '1 hour')
		ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
		DO UPDATE SET dt = excluded.dt RETURNING id`
	check(conn.QueryRow(ctx, debounce, "pgx").Scan(&first))
	check(conn.QueryRow(ctx, debounce, "pgx").Scan(&second))
	fmt.Println("debounced", map[bool]string{true: "True", false: "False"}[first == second])

	var stale *pgconn.PgError
	_, err = conn.Exec(ctx, "UPDATE task SET state = 'PLAN', attempt = 0 WHERE id = $1", id)
	if errors.As(err, &stale) {
		fmt.Println("stale", stale.Code)
	}

	var requests []string
	for n := 0; n < 100; n++ {
		requests = append(requests, fmt.Sprintf("SELECT %d", n))
	}
	_, err = conn.Exec(ctx, "INSERT INTO task (queue, request) SELECT 'bulk', unnest($1::text[])",
		requests)
	check(err)
	check(conn.QueryRow(ctx, "SELECT count(*) FROM task WHERE queue = 'bulk'").Scan(&count))
	fmt.Println("bulk", count)

	_, err = conn.Exec(ctx, "INSERT INTO task (queue, request, input) VALUES ('mail', 'send', $1)",
		`{"to": "me"}`)
	check(err)
	var input map[string]string
	tx, err = conn.Begin(ctx)
	check(err)
	check(tx.QueryRow(ctx, "SELECT handle, id, request, input FROM"+
		" pg_task_take(ARRAY['mail'], wait => 10000)").Scan(&handle, &id, &request, &input))
	_, err = tx.Exec(ctx, "SELECT pg_task_finish($1, $2)", handle, `{"sent": true}`)
	check(err)
	check(tx.Commit(ctx))
	fmt.Println("taken", request, input["to"])
	check(conn.QueryRow(ctx, "SELECT state FROM task WHERE id = $1", id).Scan(&state))
	fmt.Println("finished", state)
}
