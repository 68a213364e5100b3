# shellcheck shell=bash
# The programs that pg_task is compared with: where they come from. Sourced by scripts/bench, after
# scripts/lib.sh.

modules=(graphile-worker@0.17 pg-boss@10)

# Among these arguments of bench/run, or because no part is named?
wants_peers() {
    local argument named=
    for argument; do
        case $argument in
            peers | all) return 0 ;;
            *=* | --* | [0-9]*) ;;
            *) named=yes ;;
        esac
    done
    [ -z "$named" ]
}

# Outside: npm has the settings of whoever runs this. What it brings is kept in a folder of its own,
# and handed over as an archive on descriptor 4, for neither that folder nor those settings need be
# visible inside.
hand_over_modules() {
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/pg_task/peers
    local archive=$cache/${modules[*]}.tar
    archive=${archive// /_}
    exec 4</dev/null
    wants_peers "$@" || return 0
    if [ ! -e "$archive" ]; then
        command -v npm >/dev/null || (need_packages nodejs npm) || return 0
        mkdir -p "$cache"
        if ! quietly persistently npm install --prefix "$cache" --no-audit --no-fund --no-save \
            --ignore-scripts --omit=dev "${modules[@]}"; then
            note "npm could not install ${modules[*]}: the benchmark goes on without"
            return 0
        fi
        tar -C "$cache" -cf "$archive.new" node_modules
        mv "$archive.new" "$archive"
    fi
    exec 4<"$archive"
}

# Inside: sets BENCH_MODULES to a folder, or leaves it empty.
take_modules() {
    export BENCH_MODULES=$run/modules
    mkdir "$BENCH_MODULES"
    tar -C "$BENCH_MODULES" -xf - <&4 2>/dev/null || true
    command -v node >/dev/null && [ -e "$BENCH_MODULES/node_modules" ] || BENCH_MODULES=
}

# Inside: extensions out of Debian's packages, which are not installed, into the private prefix.
take_extensions() {
    local package
    mkdir packages
    pushd packages >/dev/null
    for package in "postgresql-$major-cron" "postgresql-$major-pgq3"; do
        quietly persistently download "$package" || note "$package cannot be had"
    done
    for package in *.deb; do
        [ -e "$package" ] || continue
        dpkg-deb -x "$package" .
        cp -r usr/lib/postgresql "$prefix/lib/"
        cp -r usr/share/postgresql "$prefix/share/"
    done
    popd >/dev/null
}
