# What object-relational mappers make of the task table: Django's inspectdb and SQLAlchemy's automap
# take each column by its own name, and the classes insert, read and change tasks.  Skipped where
# these are not installed.  A TAP test because programs run against a server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# Debian's packages are for its own
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my $node = new_node('main', conf => 'pg_task.max_executors = 2');
my $dir = PostgreSQL::Test::Utils::tempdir();
my @columns = split /\n/, sql(q{SELECT attname FROM pg_attribute
	WHERE attrelid = 'task'::regclass AND attnum > 0 ORDER BY attname COLLATE "C"});

sql('CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON task TO app');
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGDATABASE} = 'postgres';
local $ENV{PGUSER} = 'app';

# Runs a program, with what Python prints; fails if it fails.
sub run_python
{
	my ($program, @arguments) = @_;
	my $file = "$dir/program.py";

	unlink $file;
	append_to_file($file, $program);
	my ($out, $err) = run_command([ $python, $file, @arguments ]);

	diag($err) if $err =~ /Error/;
	return $out;
}

sub has { return eval { run_log([ $python, '-c', "import $_[0], psycopg2" ]) } }

my $django = <<'END';
import django, sys
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql",
                                          "NAME": "postgres"}}, USE_TZ=True)
django.setup()
END

subtest 'Django' => sub {
	plan(skip_all => 'python3-django and python3-psycopg2 are not installed') unless has('django');
	my $models = run_python($django . q{
from django.core.management import call_command
call_command("inspectdb", "task")
});
	my @fields = $models =~ /^    (\w+) = models\./mg;

	is_deeply([ sort @fields ], \@columns, 'a field for each column, by its name');
	unlike($models, qr/renamed/i, 'no name was changed');
	# what the manual says of it
	like($models, qr/unique_together = .*'queue', 'key'/, 'partial indexes are taken for constraints');
	my $task = "class Task(models.Model):\n" . ($models =~ /class Task\(models.Model\):\n(.*)/s)[0];

	$task =~ s/id = models.BigIntegerField/id = models.BigAutoField/;
	$task =~ s/class Meta:\n/class Meta:\n        app_label = "tasks"\n/;
	my $made = run_python("$django\nfrom django.db import models\n$task\n" . q{
from django.utils import timezone
try:
    Task.objects.create(request="SELECT 1")
except Exception as error:
    print(type(error).__name__, error.__cause__.pgcode, "Leave the column out" in str(error))
task = Task.objects.create(request="SELECT 1", dt=timezone.now() + timezone.timedelta(days=1),
    queue="q", priority=0, role="app", role_id=0, failed=0, crashed=0, drift=True, attempt=0,
    state="PLAN")
task = Task.objects.get(pk=task.pk)
task.priority = 5
task.save()
print(task.pk)
});

	like($made, qr/^IntegrityError 23514 True\n\d+$/, 'it creates and saves a task');
	my ($id) = $made =~ /(\d+)\Z/;

	is(task($node, $id, 'priority, state, role'), '5|PLAN|app', 'with what it has');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	is(run_python("$django\nfrom django.db import models, connection\n$task\n" . qq{
task = Task.objects.get(pk=$id)
task.save()
task.attempt = 0
try:
    task.save()
except Exception as error:
    print(type(error).__name__, error.__cause__.pgcode)
}), 'OperationalError 40001', 'save() of what is not the last version');
	is(task($node, $id, 'state, attempt'), 'DONE|1', 'it has not run again');
};

subtest 'SQLAlchemy' => sub {
	plan(skip_all => 'python3-sqlalchemy and python3-psycopg2 are not installed')
	  unless has('sqlalchemy');
	my ($names, $id, $state) = split /\n/, run_python(q{
from sqlalchemy import create_engine
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.orm import Session
engine = create_engine("postgresql+psycopg2://")
Base = automap_base()
Base.prepare(autoload_with=engine)
Task = Base.classes.task
print(*sorted(column.key for column in Task.__mapper__.column_attrs))
with Session(engine) as session:
    task = Task(request="SELECT 1", queue="q", after=[], input={"a": 1})
    session.add(task)
    session.commit()
    task.priority = 5
    session.commit()
    print(task.id)
    print(task.role)
});

	is($names, "@columns", 'an attribute for each column, by its name');
	is($state, 'app', 'it reads what the server has written');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, q{priority, input ->> 'a'}), '5|1', 'it creates and changes a task');
};

done_testing();
