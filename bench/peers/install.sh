# shellcheck shell=bash
# The programs that pg_task is compared with: where they come from. Sourced by scripts/bench, after
# scripts/lib.sh.

peer_modules=(graphile-worker@0.17 pg-boss@10)

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
