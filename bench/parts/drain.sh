# shellcheck shell=bash
# drain: no-op tasks per second, with 1 and 8 at once, beside hand-written loops.

# All contestants take turns, and in each round another begins: what else the machine does hits them
# alike. The median of the rounds counts.
drain_rounds() {
    local commits=$1 n=$2 count=$3 round i contestant
    local contestants
    IFS=, read -ra contestants <<<"pg_task,pg_task_batch,$loops"
    for ((round = 0; round < rounds; round++)); do
        for ((i = 0; i < ${#contestants[@]}; i++)); do
            contestant=${contestants[(i + round) % ${#contestants[@]}]}
            if [[ $contestant = pg_task* ]]; then
                run_pg_task "$contestant" "$n" "$count"
            else
                run_loop "$contestant" "$commits" "$n" "$count"
            fi
            sql "INSERT INTO bench.sample
                VALUES ('$contestant', '$commits', $n, $round, $rate, $wall)"
        done
    done
}

drain_results() {
    local commits=$1 n=$2
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'drain.$commits.$n.' || contestant, percentile_cont(0.5)
             WITHIN GROUP (ORDER BY rate), 'tasks/s'
         FROM bench.sample WHERE commits = '$commits' AND at_once = $n GROUP BY contestant
             ORDER BY 1"
    record "drain.$commits.$n.pg_task_wall" "(SELECT percentile_cont(0.5)
        WITHIN GROUP (ORDER BY wall)
        FROM bench.sample WHERE commits = '$commits' AND at_once = $n AND contestant = 'pg_task')" s
    judge "$commits commits, $n at once" "$(recorded "drain.$commits.$n.pg_task")" tasks/s \
        "$(recorded "drain.$commits.$n.claim_64")" 'claim of 64' 0.95
    [ "$commits $n" != 'durable 8' ] ||
        judge 'batch of 64, durable commits, 8 at once' \
            "$(recorded drain.durable.8.pg_task_batch)" tasks/s \
            "$(recorded drain.durable.8.claim_64)" 'claim of 64' 2.4
}

# A row for each number at once, a column for each contestant: the median, and the least and most.
drain_show() {
    table "SELECT at_once AS \"at once\", contestant,
                  round(percentile_cont(0.5) WITHIN GROUP (ORDER BY rate)) AS \"tasks/s\",
                  round(min(rate)) || ' - ' || round(max(rate)) AS \"in rounds\",
                  round(percentile_cont(0.5) WITHIN GROUP (ORDER BY wall)::numeric, 2) AS \"wall s\"
           FROM bench.sample WHERE commits = '$1' GROUP BY at_once, contestant ORDER BY 1, 3"
}

drain() {
    local n commits count
    title "drain: no-op tasks ($tasks, durable, 8 at once; others fewer), median of $rounds rounds"
    for n in ${at_once//,/ }; do
        restart "pg_task.max_executors = $n"
        for commits in durable asynchronous; do
            count=$((tasks * (n < 8 ? n : 8) / 8))
            [ $commits = durable ] || count=$((count / 2))
            set_commits $commits
            drain_rounds $commits "$n" $((count < 1000 ? 1000 : count))
            drain_results $commits "$n"
        done
    done
    set_commits durable
    for commits in durable asynchronous; do
        echo "$commits commits:"
        drain_show $commits
    done
    cat <<'END'
pg_task_batch: with pg_task.batch = 64. claim_64: N backends claim 64 rows of a table of the same
columns and indexes, in one commit, with FOR UPDATE SKIP LOCKED, and finish each in one of its own.
claim_one: they claim one at a time. known_ids: each runs its own part of the rows, without a claim:
the limit. plain: likewise, in a table of four columns and no index but its key. wall: from the
commit of the insert to the last end.
END
}
