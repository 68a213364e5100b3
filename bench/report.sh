# shellcheck shell=bash
# What is made of the results: the tables at the end of a run and, if asked for, a page with plots.

about() {
    sql "INSERT INTO bench.about (what, value) VALUES ('$1', '${2//\'/}')"
    printf '%s: %s\n' "$1" "$2"
}

module_version() {
    sed -n 's/^  "version": "\(.*\)",*$/\1/p' "$BENCH_MODULES/node_modules/$1/package.json"
}

# How often a second the disk takes 8 kB and says that it has them, in the way of the server.
fsync_rate() {
    { pg_test_fsync -s 1 -f "$PGDATA/pg_test_fsync" 2>/dev/null || true; } |
        awk '$1 == "fdatasync" { print $2; exit }' || true
    rm -f "$PGDATA/pg_test_fsync"
}

describe_machine() {
    about PostgreSQL "$(sql 'SHOW server_version')"
    about pg_task "$(sql "SELECT extversion FROM pg_extension WHERE extname = 'pg_task'")"
    about processors "$(nproc), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    about 'memory' "$(awk '/^MemTotal/ { printf "%d GB", $2 / 1e6 }' /proc/meminfo)"
    about kernel "$(uname -sr)"
    about 'fdatasync of 8 kB, per second' "$(fsync_rate)"
    about 'load before' "$(cut -d' ' -f1-3 /proc/loadavg)"
    about settings "$(IFS=,; echo "${server[*]}"), fsync on"
    about size "tasks=$tasks rounds=$rounds at_once=$at_once loops=$loops"
    if [ -n "$BENCH_MODULES" ]; then
        about 'compared with' "graphile-worker $(module_version graphile-worker), pg-boss $(
            module_version pg-boss), node $(node --version)"
    fi
}

# The rows of bench.target, and of bench.result that have one.
judged="SELECT seq, what, value, unit, compared, of, ratio, least, most,
        coalesce(ratio, value) >= coalesce(least, '-infinity')
        AND coalesce(ratio, value) <= coalesce(most, 'infinity') AS met
    FROM bench.target
    UNION ALL
    SELECT 1000000 + seq, name, value, unit, NULL, NULL, NULL, least, most,
        value >= coalesce(least, value) AND value <= coalesce(most, value)
    FROM bench.result WHERE least IS NOT NULL OR most IS NOT NULL"
target_columns="what, bench.short(value) AS value, unit, bench.short(compared) AS compared,
    coalesce(of, '') AS of, bench.short(ratio) AS ratio,
    concat_ws(', ', 'at least ' || least, 'at most ' || most) AS target,
    CASE WHEN met THEN 'met' ELSE 'MISSED' END AS verdict"
part_seconds="SELECT name AS part, seconds FROM bench.part
    UNION ALL SELECT 'in all', sum(seconds) FROM bench.part"

report() {
    title 'parts, seconds'
    table "$part_seconds"
    title 'targets'
    table "SELECT $target_columns FROM ($judged) AS j ORDER BY seq"
    title 'all numbers'
    psql -XAtq -F' ' -c "SELECT name, round(value::numeric, 4), unit FROM bench.result ORDER BY seq"
    [ -z "$report" ] || write_page
}

# The page -----------------------------------------------------------------------------------------

# Written in the copy of the checkout; descriptor 3 takes it out. The pictures lie in a folder of
# the page's name beside it.
write_page() {
    local page=$report pictures=${report%.md}
    mkdir -p "$pictures"
    rm -f "$pictures"/*.svg
    {
        cat "$here/page.md"
        markdown 'SELECT what, value FROM bench.about ORDER BY seq'
        printf '\n## Targets\n\n'
        markdown "SELECT $target_columns FROM ($judged) AS j ORDER BY seq"
        plots
        printf '\n## Seconds\n\n'
        markdown "$part_seconds"
    } >"$page"
    tar -cf - "$page" "$pictures" >&3
}

# A query as a table of Markdown.
markdown() {
    psql -XAq -v ON_ERROR_STOP=1 -P footer=off -F ' | ' -c "$1" |
        sed -e 's/^/| /; s/$/ |/' -e '1 { p; s/[^|]\+/---/g; }'
}

plots() {
    local rate="round((percentile_cont(0.5) WITHIN GROUP (ORDER BY rate))::numeric)"
    local value="round((percentile_cont(0.5) WITHIN GROUP (ORDER BY value))::numeric, 2)"
    plot_bars drain_durable 'No-op tasks per second, durable commits, 8 at once' "
        SELECT contestant, $rate FROM bench.sample
        WHERE commits = 'durable' AND at_once = 8 GROUP BY 1 ORDER BY 2 DESC"
    plot_bars drain_asynchronous 'No-op tasks per second, asynchronous commits, 8 at once' "
        SELECT contestant, $rate FROM bench.sample
        WHERE commits = 'asynchronous' AND at_once = 8 GROUP BY 1 ORDER BY 2 DESC"
    plot_bars peers 'No-op jobs per second beside other programs, durable commits' "
        SELECT split_part(name, '.', 2), $value FROM bench.result
        WHERE name LIKE 'peers.%' AND name NOT LIKE '%.tasks' GROUP BY 1 ORDER BY 2 DESC"
    plot_bars writers 'From the insert to DONE beside writers, ms' "
        SELECT split_part(name, '.', 2) || ' ' || split_part(name, '.', 4), round(value::numeric, 2)
        FROM bench.result WHERE name ~ '^writers.rate_.*.median.p' ORDER BY seq"
    plot_bars backlog 'Tasks per second, alone and at the head of many that wait' "
        SELECT split_part(name, '_', 2), $value FROM bench.result
        WHERE name LIKE 'backlog.bench%' GROUP BY 1 ORDER BY 1"
    plot_bars snapshot 'Tasks per second, one batch after another under an old snapshot' "
        SELECT CASE contestant WHEN 'under' THEN 'batch ' || round + 1 ELSE contestant END,
               round(avg(rate)::numeric)
        FROM bench.sample WHERE commits = 'snapshot' GROUP BY 1
        ORDER BY min(CASE contestant WHEN 'under' THEN round ELSE -1 END)"
    plot_bars memory 'Private memory of an executor that has run so many tasks, kB' "
        SELECT split_part(name, '.', 3), value FROM bench.result
        WHERE name LIKE 'memory.executor.%' ORDER BY seq"
}

# plot_bars NAME TITLE QUERY: the query gives labels and numbers. As text, and as a picture.
plot_bars() {
    local data=$BENCH_DIR/$1.data bars
    psql -XAtq -F$'\t' -v ON_ERROR_STOP=1 -c "$3" >"$data"
    bars=$(wc -l <"$data")
    [ -s "$data" ] || return 0
    printf '\n## %s\n\n![%s](%s/%s.svg)\n\n' "$2" "$2" "$(basename "$pictures")" "$1"
    awk -F'\t' '{ label[NR] = $1; value[NR] = $2; if ($2 > most) most = $2
                  if (length($1) > width) width = length($1) }
        END { for (i = 1; i <= NR; i++) {
                  bar = ""
                  for (n = most ? int(50 * value[i] / most + 0.5) : 0; n > 0; n--) bar = bar "#"
                  printf "    %-*s %10s %s\n", width, label[i], value[i], bar } }' "$data" |
        sed 's/ *$//'
    gnuplot <<END
set terminal svg size 720,$((60 + 26 * bars)) font 'sans-serif,12' background 'white' noenhanced
set output '$pictures/$1.svg'
set title '$2'
set datafile separator '\t'
set style fill solid 0.7 border -1
set yrange [$bars - 0.4:-0.6]
set xrange [0:$(awk -F'\t' '$2 > most { most = $2 } END { print most ? 1.15 * most : 1 }' "$data")]
set format x '%.0f'
set grid x
set bmargin 3
unset key
plot '$data' using (\$2 / 2.0):0:(\$2 / 2.0):(0.35):yticlabels(1) \
         with boxxyerror lc rgb '#336791', \
     '' using 2:0:2 with labels left offset 0.5,0
END
    # gnuplot names what it has drawn by the commands, with folders of this machine
    sed -i 's|<title>.* using .*</title>||' "$pictures/$1.svg"
}
