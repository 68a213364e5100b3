# shellcheck shell=bash
# shellcheck disable=SC2034  # set for the scripts
# Shared by demo, test, chaos and bench; to be sourced.
#
# A run has two halves. Outside, `enter` makes the machine ready and copies the checkout into a work
# folder. Inside, the copy of the same script goes on as a user who may run a server (a server
# refuses root), builds into a private prefix, and starts throw-away servers. The system's own
# server is never installed into, started or stopped.
#
# ${TMPDIR:-/tmp}/pg_task-<uid>-<checkout>/<major>[-assert]/
#     build/    objects, kept from run to run
#     prefix/   a copy of the server with pg_task installed
#     run.*/    one run: tree/ (the checkout), data/, logs; removed at the end
#     failed/   the last run that failed

set -euo pipefail
umask 022

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

note() { printf '%s\n' "$*" >&2; }
die() { note "${0##*/}: $*"; exit 1; }

# Runs a command whose output matters only when it fails.
quietly() {
    local log rc=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || rc=$?
    [ "$rc" = 0 ] || cat "$log" >&2
    rm -f "$log"
    return "$rc"
}

# Runs a command that needs a mirror, or a lock of apt: either may be missing for a moment.
persistently() {
    local try
    for try in 1 2 3; do
        "$@" && return
        [ "$try" = 3 ] || sleep 10
    done
    return 1
}

# Downloads packages into the current folder, with lists of our own where the machine has none, or
# old ones. That takes no special rights.
download() {
    local -a own=(-o "Dir::State::lists=$PWD/lists" -o "Dir::Cache=$PWD/cache")
    apt-get -q download "$@" && return
    mkdir -p lists/partial cache/archives/partial
    apt-get -q "${own[@]}" update && apt-get -q "${own[@]}" download "$@"
}

# The version that META.json has, as the archives of a release.
version() { sed -n '/"version"/{s/.*: *"\(.*\)".*/\1/p;q}' "$top/META.json"; }

# Outside: the machine -----------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# The major version that runs without a chroot: the newest that is installed to build with, or else
# the one that the distribution offers.
native_major() {
    local dir found=
    for dir in $(printf '%s\n' /usr/lib/postgresql/* | sort -V); do
        [ ! -e "$dir/lib/pgxs" ] || [ "${dir##*/}" -lt 15 ] || found=${dir##*/}
    done
    [ -n "$found" ] || found=$(offered_major)
    [ -n "$found" ] ||
        { quietly persistently as_root apt-get update || true; found=$(offered_major); }
    [ -n "$found" ] || die "no PostgreSQL is known to apt (apt-get update?): name one with --major"
    echo "$found"
}

offered_major() {
    apt-cache depends postgresql 2>/dev/null | sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p'
}

# The Debian suite that has a major version.
suite_of() {
    case $1 in
        15) echo bookworm ;;
        17) echo trixie ;;
        18 | 19) echo sid ;;
        *) die "no Debian suite is known to have PostgreSQL $1" ;;
    esac
}

suite_folder() { echo "${XDG_CACHE_HOME:-$HOME/.cache}/pg_task/$1"; }

# What must be installed to build for a major version, start it, and test it.
packages_of() {
    local pgtap=$1
    [ "$1" -le 18 ] || pgtap=18    # no newer package exists; its SQL files run on 19 as they are
    echo gcc make libc6-dev perl "$(server_packages_of "$1")" "postgresql-$pgtap-pgtap" \
        libipc-run-perl libtap-parser-sourcehandler-pgtap-perl
}

server_packages_of() { echo "postgresql-$1 postgresql-server-dev-$1"; }

# What must be installed to build and check Debian packages.
deb_packages='build-essential debhelper postgresql-all postgresql-server-dev-all lintian'

need_packages() {
    local package missing=()
    for package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed* ]] ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    as_root true 2>/dev/null || die "these packages are missing; as root:
    apt-get install --no-install-recommends ${missing[*]}"
    note "installing ${missing[*]}"
    quietly persistently as_root apt-get -q update ||
        note "apt-get update failed; trying with what is known"
    quietly persistently as_root bash -c "$install_packages" install "${missing[@]}" ||
        die "the packages could not be installed"
}

# The packages create and start a cluster unless told not to: tell them so, for the moment.
# shellcheck disable=SC2016  # run by another shell
install_packages='
set -e
export DEBIAN_FRONTEND=noninteractive
conf=/etc/postgresql-common/createcluster.conf
apt-get -qy -o DPkg::Lock::Timeout=120 install --no-install-recommends postgresql-common
cp -p $conf $conf.pg_task
trap "mv $conf.pg_task $conf" EXIT
sed -i "/^ *create_main_cluster/d" $conf
echo "create_main_cluster = false" >>$conf
apt-get -qy -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@"
'

# Installs what is missing of some packages. Their services are neither started nor enabled.
# shellcheck disable=SC2016  # run by another shell
install_services='
set -e
export DEBIAN_FRONTEND=noninteractive
missing=
for package; do dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"; done
[ "$missing" ] || exit 0
echo "installing$missing" >&3
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap "rm -f $policy" EXIT
    printf "#!/bin/sh\nexit 101\n" >$policy
    chmod 755 $policy
fi
install() { apt-get -qy -o DPkg::Lock::Timeout=120 install --no-install-recommends $missing; }
install || { apt-get -q update && install; }
for package in $missing; do systemctl disable "${package%-server}" || true; done
'

# Outside: modules of npm, which has the settings of whoever runs this. What it brings is kept in a
# folder of its own, and handed over as an archive on descriptor 4, for neither that folder nor
# those settings need be visible inside. Without arguments, or if npm fails, none are.
hand_over_modules() {
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/pg_task/peers
    local archive=$cache/$*.tar
    archive=${archive// /_}
    exec 4</dev/null
    [ $# -gt 0 ] || return 0
    if [ ! -e "$archive" ]; then
        command -v npm >/dev/null || (need_packages nodejs npm) || return 0
        rm -rf "$cache/node_modules"
        mkdir -p "$cache"
        if ! quietly persistently npm install --prefix "$cache" --no-audit --no-fund --no-save \
            --ignore-scripts --omit=dev "$@"; then
            note "npm could not install $*: going on without"
            return 0
        fi
        tar -C "$cache" -cf "$archive.new" node_modules
        mv "$archive.new" "$archive"
    fi
    exec 4<"$archive"
}

# Inside: puts them into this new folder. False if there are none, or nothing to run them.
take_modules() {
    mkdir "$1"
    tar -C "$1" -xf - <&4 2>/dev/null || true
    command -v node >/dev/null && [ -e "$1/node_modules" ]
}

# Runs a command in another root. The name spaces see to it that nothing stays mounted and nothing
# stays running, however it ends.
in_chroot() {
    local dir=$1
    shift
    # shellcheck disable=SC2016  # run by another shell
    unshare --mount --pid --fork --kill-child sh -c '
        mount -t proc proc "$0/proc" && mount -t tmpfs -o mode=1777 shm "$0/dev/shm" &&
        exec chroot "$0" "$@"' \
        "$dir" env PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
}

as_root_in() {
    if [ -n "$1" ]; then in_chroot "$@"; else as_root "${@:2}"; fi
}

# Installs what is missing of some packages where the server is: see "root" and "reach" of enter.
# shellcheck disable=SC2016  # run by another shell
add_packages() {
    [ $# = 0 ] || "${reach[@]}" sh -c 'dpkg -s "$@" >/dev/null 2>&1' sh "$@" ||
        as_root_in "$root" sh -c "$install_services" install "$@"
}

# Every script begins with: enter "$@". One that needs more packages defines more_packages first,
# and wished_packages for those without which it goes on.
#
# Outside, it continues in the copy and does not return. Inside, it leaves the script's own
# arguments in `args`. --major N names the server; without, the machine's own. --older N wants an
# older one beside it, to upgrade from: PG_TASK_OLDER. --assert builds the library with assertions,
# in a work folder of its own. PG_TASK_OTHER_SOURCES in the environment names a folder with the
# sources of the other pg_task, for test/t/convert_rekgrpth.pl, or of pgmq, for coming_from.pl, or
# with an installed Citus, for citus.pl.
enter() {
    if [ -n "${PG_TASK_RUN:-}" ]; then
        begin_run
        args=("$@")
        return
    fi

    local major='' older='' root='' assert='' native suite script=${0##*/} user work run child=
    local package
    local others=${PG_TASK_OTHER_SOURCES:-}
    [ -z "$others" ] || others=$(cd "$others" && pwd -P) || die "there is no folder $others"
    while :; do
        case ${1:-} in
            --major) major=${2:?--major needs a number}; shift 2 ;;
            --older) older=${2:?--older needs a number}; shift 2 ;;
            --assert) assert=yes; shift ;;
            *) break ;;
        esac
    done
    native=$(native_major)
    : "${major:=$native}"

    local -a reach=(env)    # how to run a command where the server is
    if [ "$major" = "$native" ] || [ -e "/usr/lib/postgresql/$major/lib/pgxs" ]; then
        # shellcheck disable=SC2046  # a list
        need_packages $(packages_of "$major") ${older:+$(server_packages_of "$older")}
    else
        suite=$(suite_of "$major")
        "$top/scripts/chroot" "$suite" ${older:+"$older"} || die "PostgreSQL $major is not available"
        root=$(suite_folder "$suite")
        reach=(in_chroot "$root")
    fi
    # shellcheck disable=SC2046  # lists
    if [ "$(type -t more_packages)" = function ]; then
        quietly add_packages $(more_packages) 3>&2 ||
            die "these packages are needed, and could not be installed: $(more_packages)"
    fi
    if [ "$(type -t wished_packages)" = function ]; then
        for package in $(wished_packages); do
            add_packages "$package" 3>&2 >/dev/null 2>&1 </dev/null ||
                note "going on without $package"
        done
    fi
    if [ "$(id -u)" = 0 ]; then
        user=$("${reach[@]}" sh -c 'id -u postgres 2>/dev/null || id -u nobody')
        reach+=(setpriv "--reuid=$user" "--regid=$("${reach[@]}" id -g "$user")" --init-groups)
    fi

    cd /
    work=pg_task-$("${reach[@]}" id -u)-$(printf %s "$top" | cksum | cut -d' ' -f1)
    # shellcheck disable=SC2016  # run by another shell
    run=$("${reach[@]}" sh -ec '
        dir=${TMPDIR:-/tmp}
        [ -w "$dir" ] && [ ${#dir} -le 30 ] || dir=/tmp    # a socket has to fit below
        mkdir -p "$dir/$1"
        [ -O "$dir/$1" ]    # nobody else made it
        [ ! -L "$dir/$1" ]
        mkdir -p "$dir/$1/$2"
        mktemp -d "$dir/$1/$2/run.XXXXXX"' sh "$work" "$major${assert:+-assert}") ||
        die "no work folder can be made"

    # shellcheck disable=SC2016
    { cd "$top"
      ls -d Makefile llms.txt ./*.md ./*.control src sql test expected docs demo bench scripts \
          monitoring packaging 2>/dev/null || true; } |
        tar -C "$top" -cf - --exclude='*.o' --exclude='*.bc' --exclude='*.so' -T - |
        "${reach[@]}" sh -c 'mkdir "$0/tree" && tar -C "$0/tree" -xmf -' "$run"
    # The folder itself need not be visible inside.
    # shellcheck disable=SC2016
    if [ -n "$others" ]; then
        tar -C "$others" -cf - . |
            "${reach[@]}" sh -c 'mkdir "$0" && tar -C "$0" -xmf -' "$run/others"
        others=$run/others
    fi

    # In the background, for a shell that waits acts on a signal at once. What runs in name spaces
    # of its own is gone with the first process of them.
    set -m
    "${reach[@]}" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$run" TMPDIR="$run" LANG=C.UTF-8 \
        TERM="${TERM:-dumb}" PG_TASK_RUN="$run" PG_TASK_MAJOR="$major" PG_TASK_ROOT="$root" \
        PG_TASK_OLDER="$older" PG_TASK_ASSERT="$assert" PG_TASK_OTHER_SOURCES="$others" \
        bash "$run/tree/scripts/$script" "$@" </dev/null &
    child=$!
    set +m
    if [ -n "$root" ]; then
        # shellcheck disable=SC2064  # the pid of now
        trap "{ kill -KILL -- -$child; wait $child; } 2>/dev/null; in_chroot '$root' rm -rf '$run'
            exit 130" INT TERM HUP
    else
        # shellcheck disable=SC2064
        trap "kill -TERM $child 2>/dev/null; wait $child; exit 130" INT TERM HUP
    fi
    local rc=0
    wait "$child" || rc=$?
    exit "$rc"
}

# Inside: one run ----------------------------------------------------------------------------------

begin_run() {
    run=$PG_TASK_RUN
    choose_server "$PG_TASK_MAJOR" "${run%/*}"
    PATH=$bindir:$PATH
    job=
    keep=
    echo $$ >"$run/pid"
    trap end_run EXIT
    trap 'exit 130' INT TERM HUP
    sweep
    cd "$run/tree"
}

# Sets which server `build` builds for, and in which folder.
choose_server() {
    major=$1
    work=$2
    prefix=$work/prefix
    bindir=$prefix/lib/postgresql/$major/bin
    pg_config=$bindir/pg_config
}

end_run() {
    local rc=$? step
    trap '' INT TERM HUP
    # What still runs is told to go, and given a moment to stop the servers it has.
    if [ -n "$job" ] && kill -TERM -- "-$job" 2>/dev/null; then
        for ((step = 0; step < 50; step++)); do
            kill -0 -- "-$job" 2>/dev/null || break
            sleep 0.1
        done
    fi
    stop_servers "$run"
    if [ -n "$keep" ] && [ "$rc" != 0 ]; then
        rm -rf "$work/failed"
        mv "$run" "$work/failed"
        note "logs: $PG_TASK_ROOT$work/failed"
    else
        rm -rf "$run"
    fi
    [ "$(type -t last_word)" != function ] || last_word "$rc"
    exit "$rc"
}

# Stops the servers whose data lie in a run's folder.
stop_servers() {
    local file
    find "$1" -name postmaster.pid -not -path '*/backup/*' 2>/dev/null | while read -r file; do
        "$bindir/pg_ctl" -D "${file%/*}" -m immediate -t 20 stop >/dev/null 2>&1 || true
    done
}

# Cleans up after runs that were killed before they could. From a chroot, nothing is seen of another
# run but its age.
sweep() {
    local dir
    for dir in "$work"/run.*; do
        if [ -z "$PG_TASK_ROOT" ] && [ -e "$dir/pid" ]; then
            ! kill -0 "$(cat "$dir/pid")" 2>/dev/null || continue
        else
            [ -n "$(find "$dir" -maxdepth 0 -mmin +120)" ] || continue
        fi
        stop_servers "$dir"
        rm -rf "$dir"
    done
}

# Outlives the signal that ends what it listens to, for the last words.
write_log() { (trap '' INT TERM HUP; exec tee "$1") }

# Runs a long command, so that a signal ends it and all that it started. Its output goes to a log,
# too.
run_job() {
    local log=$1 rc=0
    shift
    set -m
    ("$@" 2>&1 | write_log "$log") </dev/null &
    job=$!
    set +m
    wait "$job" || rc=$?
    job=
    return "$rc"
}

# Prints the assertions that have failed; false if there are none. One that fails crashes the
# server, which restarts, so a test may still pass. Therefore the logs are searched.
failed_assertions() {
    grep -rhs --include='*.log' '^TRAP: ' "$run" | sed 's/,* PID: .*//' | sort | uniq -c
}

# Brings build/ and prefix/ up to date. Warnings are errors.
build() {
    local lock
    exec {lock}>"$work/lock"
    flock "$lock"
    make_prefix
    update_sources
    local -a make=(make -s -C "$work/build" WERROR=1 with_llvm=no "PG_CONFIG=$pg_config"
        "ASSERT=$PG_TASK_ASSERT")
    quietly "${make[@]}" "-j$(nproc)" all || die "the build failed"
    quietly "${make[@]}" install || die "the installation failed"
    exec {lock}>&-
}

# A server's programs find their other files from where they lie themselves, so a copy of its
# folders is a server of its own, pg_config included.
make_prefix() {
    local system=/usr/lib/postgresql/$major stamp
    stamp=$(stat -c '%n %s %Y' "$system/bin/postgres" "$system/lib/pgxs/src/Makefile.global" \
        /usr/share/postgresql/*/extension/pgtap.control
        stat -c '%n %s %Y' "/usr/share/postgresql/$major/extension/pg_cron.control" \
            "/usr/share/postgresql/$major/extension/pgagent.control" 2>/dev/null || true)
    [ "$stamp" != "$(cat "$prefix/stamp" 2>/dev/null)" ] || return 0
    rm -rf "$prefix" "$work/build"
    mkdir -p "$prefix/lib/postgresql" "$prefix/share/postgresql" "$prefix/include"
    cp -a "$system" "$prefix/lib/postgresql/"
    cp -a "/usr/share/postgresql/$major" "$prefix/share/postgresql/"
    cp -a /usr/include/postgresql "$prefix/include/"
    local extensions=$prefix/share/postgresql/$major/extension
    [ -e "$extensions/pgtap.control" ] ||
        cp -a /usr/share/postgresql/*/extension/pgtap* "$extensions/"
    echo "$stamp" >"$prefix/stamp"
}

# Copies into build/ what differs, by content: times tell little after a change of branch.
update_sources() {
    local build=$work/build file
    mkdir -p "$build"
    cmp -s Makefile "$build/Makefile" || rm -f "$build"/src/*.o "$build"/src/*/*.o
    for file in src/*.[ch] src/*/*.[ch]; do
        mkdir -p "$build/${file%/*}"
        cmp -s "$file" "$build/$file" || cp "$file" "$build/$file"
    done
    for file in "$build"/src/*.[cho] "$build"/src/*/*.[cho]; do
        [ -e "${file#"$build"/}" ] || [ -e "$(sed 's/o$/c/' <<<"${file#"$build"/}")" ] ||
            rm -f "$file"
    done
    rm -rf "$build/sql"
    cp -r Makefile ./*.control sql "$build/"
}

# Starts a server of its own, with the library preloaded and no TCP; psql and its like then reach it
# without being told. Each argument is a line for postgresql.conf.
server_start() {
    export PGDATA=$run/data PGHOST=$run PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
    quietly initdb --no-sync -A trust -U postgres -E UTF8 --locale=C.UTF-8 -D "$PGDATA"
    printf '%s\n' "include '$run/tree/test/pg_task.conf'" "listen_addresses = ''" \
        "unix_socket_directories = '$run'" >>"$PGDATA/postgresql.conf"
    server_set "$@"
    server_control start
}

server_restart() {
    server_set "$@"
    server_control restart
}

server_set() {
    [ $# = 0 ] || printf '%s\n' "$@" >>"$PGDATA/postgresql.conf"
}

server_control() {
    pg_ctl -s -w -l "$PG_TASK_RUN/server.log" "$@" </dev/null ||
        { tail -n 30 "$PG_TASK_RUN/server.log" >&2; die "the server did not $1"; }
}

# Waits until a query says t.
wait_until() {
    local step
    for ((step = 0; step < 600; step++)); do
        [ "$(psql -XAtqc "$1" 2>&1)" != t ] || return 0
        sleep 0.1
    done
    tail -n 30 "$run/server.log" >&2
    die "waited in vain for: $1"
}
