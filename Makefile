# pg_task is built by PGXS: make, make install, make installcheck.
# make demo, test, test-all, chaos, ha, drivers, fuzz, databases, bench, site-check, deb and deb-check
# need nothing installed: see scripts/.
# make report needs psql and a server.

MODULE_big = pg_task
EXTENSION = pg_task
# The others are for psql: they convert the tables of other extensions.
DATA = $(wildcard sql/pg_task--*.sql) $(wildcard sql/pg_task_convert_*.sql)
OBJS = $(patsubst %.c,%.o,$(wildcard src/*.c src/*/*.c))
PGFILEDESC = "pg_task - task scheduler"

# The server loads libraries into one name space: hide all but what is marked. Version 15 does not
# do so by itself, and leaves PGDLLEXPORT empty.
PG_CFLAGS = -fvisibility=hidden
PG_CPPFLAGS = -I$(srcdir)/src -DPGDLLEXPORT='__attribute__((visibility("default")))'

# make WERROR=1: no warning passes. The server's headers are taken as system headers, so that
# warnings in them do not count.
ifdef WERROR
PG_CFLAGS += -Wall -Wextra -Werror
PG_CPPFLAGS += -isystem $(includedir_server)
endif

# make ASSERT=yes: the library with assertions, for a server without. An assertion that fails
# crashes the server.
ifneq ($(ASSERT),)
PG_CPPFLAGS += -DUSE_ASSERT_CHECKING
endif

# Tests are found by their names: a new file in test/sql, test/specs or test/t is enough. The
# options make installcheck start a server of its own, from the installed files, with the library
# preloaded. Version 15 finds expected/ through --outputdir.
tests = $(sort $(basename $(notdir $(wildcard $(1)))))
REGRESS := $(call tests,test/sql/*.sql)
ISOLATION := $(call tests,test/specs/*.spec)
PROVE_TESTS := $(sort $(wildcard test/t/*.pl))
TAP_TESTS := $(if $(PROVE_TESTS),1)
# make installcheck RUNNING_SERVER=yes: on the server that psql reaches, which preloads it.
private_server = $(if $(RUNNING_SERVER),,--temp-instance=./tmp_check_$(1) \
	--temp-config=test/pg_task.conf --encoding=UTF8 --no-locale)
REGRESS_OPTS = --inputdir=test --outputdir=. $(call private_server,regress)
ISOLATION_OPTS = --inputdir=test --outputdir=. $(call private_server,isolation)
EXTRA_CLEAN = results output_iso log regression.diffs regression.out \
	tmp_check tmp_check_regress tmp_check_isolation

# These targets do their own set-up, so they must not need pg_config to be there.
frame = demo test test-all test-citus matrix chaos ha drivers fuzz bench databases report report-check \
	monitoring-check site site-check dist deb deb-check format format-check help
ifneq ($(filter-out $(frame),$(or $(MAKECMDGOALS),all)),)
PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS tracks no headers.
$(OBJS): $(wildcard src/*.h src/*/*.h)
endif

.PHONY: $(frame)

major = $(if $(MAJOR),--major $(MAJOR)) $(if $(ASSERT),--assert)

# make test TESTS='test/t/retries.pl test/sql/errors.sql' MAJOR=17
demo:
	@scripts/demo $(major)
test:
	@scripts/test $(major) $(TESTS)
test-all:
	@scripts/test-all $(if $(ASSERT),--assert) $(MAJORS) $(TESTS)
# PG_TASK_OTHER_SOURCES=/tmp/citus make test-citus
test-citus:
	@scripts/test $(major) test/t/citus.pl
matrix:
	@scripts/matrix $(major) $(if $(OLDER),--older $(OLDER))
chaos:
	@scripts/chaos $(major) $(CHAOS)
ha:
	@scripts/ha $(major) $(HA)
drivers:
	@scripts/drivers
fuzz:
	@scripts/fuzz $(major) $(FUZZ)
bench:
	@scripts/bench $(major) $(BENCH)
databases:
	@scripts/databases $(major) $(DATABASES)
# make report TO=page.html REPORT='--hours 6 -h host -d database'
report:
	@scripts/report --to '$(or $(TO),report.html)' $(REPORT)
report-check:
	@scripts/report-check '$(or $(TO),report.html)'
monitoring-check:
	@scripts/monitoring-check $(major)
site:
	@scripts/site
site-check:
	@scripts/site-check
# make deb SUITES='bookworm trixie sid': in chroots
dist:
	@scripts/dist
deb:
	@scripts/deb $(SUITES)
deb-check:
	@scripts/deb-check $(SUITES)
format:
	clang-format -i $(wildcard src/*.[ch] src/*/*.[ch])
# Where it wraps a comment, clang-format leaves out a space.  Manuals have at most 100 columns, but
# for rows of tables and addresses.
format-check:
	clang-format --dry-run -Werror $(wildcard src/*.[ch] src/*/*.[ch])
	! grep -nE '^ \*[A-Za-z]' $(wildcard src/*.[ch] src/*/*.[ch])
	! LC_ALL=C.UTF-8 grep -nE '^[^|].{100}' README.md docs/*.md | grep -v '://'
	@# No circle of includes; a .c file and its header are one, executor/executor.h is the server's.
	grep -oE '^#include "[^"]+' $(wildcard src/*.[ch] src/*/*.[ch]) | \
	sed -nE '/executor\/executor/d; s|^src/(.*)\.[ch]:#include "(.*)\.h$$|\1 \2|p' | \
	awk '$$1 != $$2' | tsort >/dev/null
help:
	@echo 'demo      see tasks run on a throw-away server'
	@echo 'test      all tests; TESTS="test/t/x.pl test/sql/y.sql" for some; MAJOR=17: that server'
	@echo '          ASSERT=yes for a library with assertions; also with test-all and chaos'
	@echo 'test-all  the tests on every major version that can be had; MAJORS="17 18" for some'
	@echo 'test-citus with the Citus of the server, or of the folder PG_TASK_OTHER_SOURCES'
	@echo 'matrix    what commands such as DROP DATABASE and pg_upgrade print, and leave of tasks;'
	@echo '          MAJOR=18 OLDER=15: on version 15, and pg_upgrade from there'
	@echo 'chaos     all kinds of tasks while processes are killed; CHAOS="60 42 64": seconds, seed, batch;'
	@echo '          CHAOS="takers 60 42": programs that take tasks, seconds and seed'
	@echo 'ha        switchovers and kills under Patroni; HA="10 10 42": of each so many, seed'
	@echo 'drivers   the drivers and mappers of five languages, directly and through pgbouncer'
	@echo 'fuzz      cron expressions under libFuzzer; FUZZ=60: seconds; FUZZ="owner 900 42": the owner of'
	@echo '          a database changes the tables at random, seconds and seed'
	@echo 'bench     measure, in less than 30 minutes; BENCH="tasks=2000 rounds=1": see that it works;'
	@echo '          BENCH="report=docs/benchmarks.md": write that page; bench/run has the arguments'
	@echo 'databases many databases on few worker slots; DATABASES="200 8 60": how many databases,'
	@echo '          max_worker_processes, seconds in which nothing happens'
	@echo 'report    what pg_task does in a database, one page; REPORT="-h host -d app" TO=page.html'
	@echo '          report-check shows that page in Chromium, and leaves pictures'
	@echo 'monitoring-check  runs monitoring/ with the exporters and the Prometheus of Debian'
	@echo 'site      README.md and docs/ as pages, from site/index.html on, with pandoc; site-check'
	@echo '          makes them, follows the links, and searches and looks in Chromium'
	@echo 'dist      the archives of a release, from the last commit: dist/'
	@echo 'deb       Debian packages, for the release that runs here; SUITES="trixie sid": in chroots'
	@echo 'deb-check installs, upgrades, removes and purges them in chroots of bookworm, trixie and sid'
	@echo 'format    format the C sources; format-check only looks'
	@echo 'all, install, installcheck, clean: as any PGXS extension'
