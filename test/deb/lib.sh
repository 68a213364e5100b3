# shellcheck shell=bash
# shellcheck disable=SC2034  # set for the files
# What the files of scripts/deb-check share; to be sourced, in a chroot that has the packages in
# /packages, and a cluster "main" that is not started. The first argument is the major version.

major=$1
package=postgresql-$major-pgtask
deb=$(echo /packages/"$package"_*.deb)
library=/usr/lib/postgresql/$major/lib/pg_task.so
conf_d=/etc/postgresql/$major/main/conf.d
log=/var/log/postgresql/postgresql-$major-main.log
output=/tmp/output
export DEBIAN_FRONTEND=noninteractive

# check 'what holds' command...: prints whether the command succeeds, and if not, what it said.
check() {
    local what=$1
    shift
    if "$@" >$output 2>&1; then
        echo "ok - $what"
    else
        echo "not ok - $what"
        sed 's/^/# /' $output | tail -n 20
    fi
}

# Whether a command fails, and says so.
fails_with() {
    local text=$1
    shift
    if "$@" >/tmp/failure 2>&1; then cat /tmp/failure; return 1; fi
    cat /tmp/failure
    grep -qF -- "$text" /tmp/failure
}

says() {
    local text=$1
    shift
    "$@" >/tmp/said 2>&1 || { cat /tmp/said; return 1; }
    cat /tmp/said
    grep -qF -- "$text" /tmp/said
}

preload() { pg_conftool "$major" main set shared_preload_libraries pg_task; }
cluster() { pg_ctlcluster "$major" main "$@"; }
install() { apt-get -qy --allow-downgrades install "$@"; }

# As the superuser, by psql.
sql() { setpriv --reuid=postgres --regid=postgres --init-groups psql -XAtqc "$1" "${@:2}"; }

# Whether a command comes to succeed, within a minute.
soon() {
    local end=$((SECONDS + 60))
    while [ $SECONDS -lt $end ]; do
        "$@" && return
        sleep 0.1
    done >/tmp/soon 2>&1
    tail -n 20 /tmp/soon "$log"
    return 1
}

is_true() {
    local said
    said=$(sql "$1")
    echo "$said"
    [ "$said" = t ]
}

becomes_true() { soon is_true "$1"; }
log_says() { soon grep -F "$1" "$log"; }

# Whether a new task comes to be DONE.
task_runs() {
    local id
    id=$(sql "INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id") || return
    becomes_true "SELECT state = 'DONE' AND response = '1' FROM task WHERE id = $id"
}

# A copy of a package with other fields: repack FILE NEW 's/.../' for debian/control.
repack() {
    rm -rf /tmp/repack
    dpkg-deb -R "$1" /tmp/repack
    sed -i "$3" /tmp/repack/DEBIAN/control
    dpkg-deb -b /tmp/repack "$2" >/dev/null
}
