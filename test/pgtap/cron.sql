-- Cron expressions, by pg_task_next and pg_task_schedule: what is refused, and the moments that an
-- expression names, compared with a walk over local days in SQL.
BEGIN;
SELECT no_plan();
SET LOCAL TimeZone = 'UTC';
SET LOCAL DateStyle = 'ISO';

-- The oracle.  It expands the fields of an expression, walks over days, and asks the server's
-- AT TIME ZONE which moments a local time is.

CREATE FUNCTION fields(cron text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE cardinality(f) WHEN 5 THEN '{0}' || f ELSE f END
    FROM regexp_split_to_array(cron, '\s+') AS f
$$;

-- The numbers that a field names; elements with letters or "#" are left out.
CREATE FUNCTION expand(field text, low int, high int) RETURNS int[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(DISTINCT v), '{}')
    FROM unnest(string_to_array(field, ',')) AS part,
        regexp_match(part, '^(\*|\d+)(?:-(\d+))?(?:/(\d+))?$') AS m,
        generate_series(CASE m[1] WHEN '*' THEN low ELSE m[1]::int END,
                        CASE WHEN m[1] = '*' THEN high
                             WHEN m[2] IS NOT NULL THEN m[2]::int
                             WHEN m[3] IS NOT NULL THEN high
                             ELSE m[1]::int END,
                        coalesce(m[3]::int, 1)) AS v
$$;

CREATE FUNCTION nearest_workday(month date, n int, length int) RETURNS int LANGUAGE sql IMMUTABLE
AS $$
    SELECT day
    FROM generate_series(greatest(n - 2, 1), least(n + 2, length)) AS day
    WHERE extract(isodow FROM month + day - 1) < 6 AND n <= length
    ORDER BY abs(day - n)
    LIMIT 1
$$;

-- The days that match, by plain numbers first and then by the elements with letters or "#".
CREATE FUNCTION matching_days(cron text, first date, last date) RETURNS SETOF date LANGUAGE plpgsql
IMMUTABLE AS $$
DECLARE
    f text[] := fields(cron);
    months int[] := expand(f[5], 1, 12);
    days int[] := expand(f[4], 1, 31);
    weekdays int[] := ARRAY(SELECT v % 7 FROM unnest(expand(f[6], 0, 6)) AS v);
    special_days text[] := ARRAY(
        SELECT part FROM unnest(string_to_array(upper(f[4]), ',')) AS part WHERE part ~ '[LW]');
    special_weekdays text[] := ARRAY(
        SELECT part FROM unnest(string_to_array(upper(f[6]), ',')) AS part WHERE part ~ '[L#]');
    month date;
    length int;
    part text;
    by_day boolean;
    by_weekday boolean;
BEGIN
    FOR d IN first - date '2000-01-01' .. last - date '2000-01-01' LOOP
        DECLARE
            today date := date '2000-01-01' + d;
            day int := extract(day FROM today);
            weekday int := extract(dow FROM today);
        BEGIN
            CONTINUE WHEN extract(month FROM today) <> ALL (months);
            month := today - day + 1;
            length := (month + interval '1 month')::date - month;
            by_day := day = ANY (days);
            by_weekday := weekday = ANY (weekdays);
            FOREACH part IN ARRAY special_days LOOP
                by_day := by_day OR day = CASE part WHEN 'L' THEN length ELSE
                    nearest_workday(month, rtrim(part, 'W')::int, length) END;
            END LOOP;
            FOREACH part IN ARRAY special_weekdays LOOP
                by_weekday := by_weekday OR left(part, 1)::int % 7 = weekday
                    AND CASE WHEN part LIKE '%L' THEN day + 7 > length
                             ELSE (day + 6) / 7 = right(part, 1)::int END;
            END LOOP;
            IF f[4] LIKE '*%' OR f[6] LIKE '*%' THEN
                by_day := by_day AND by_weekday;
            END IF;
            IF by_day OR by_weekday AND f[4] NOT LIKE '*%' AND f[6] NOT LIKE '*%' THEN
                RETURN NEXT today;
            END IF;
        END;
    END LOOP;
END $$;

CREATE FUNCTION locals(cron text, first date, last date) RETURNS SETOF timestamp LANGUAGE sql
IMMUTABLE AS $$
    WITH days AS MATERIALIZED (SELECT d FROM matching_days(cron, first, last) AS d)
    SELECT d + make_interval(hours => h, mins => m, secs => s)
    FROM fields(cron) AS f, unnest(expand(f[3], 0, 23)) AS h, unnest(expand(f[2], 0, 59)) AS m,
        unnest(expand(f[1], 0, 59)) AS s, days
$$;

-- When the offset of a zone changes.
CREATE TEMP TABLE changes (zone text, moment timestamptz, before interval, after interval);

CREATE FUNCTION find_changes(zones text[], first timestamptz, last timestamptz) RETURNS void
LANGUAGE sql AS $$
    WITH days AS (
        SELECT zone, day
        FROM unnest(zones) AS zone, generate_series(first, last, '1 day') AS day
        WHERE (day AT TIME ZONE zone) + interval '1 day'
              <> (day + interval '24 hours') AT TIME ZONE zone),
    quarters AS (
        SELECT zone, moment, ((moment - interval '1 us') AT TIME ZONE zone)
                             - ((moment - interval '1 us') AT TIME ZONE 'UTC') AS before,
               (moment AT TIME ZONE zone) - (moment AT TIME ZONE 'UTC') AS after
        FROM days, generate_series(day, day + interval '24 hours', '15 min') AS moment)
    INSERT INTO changes SELECT DISTINCT * FROM quarters WHERE before <> after
$$;

-- The moments of an expression after one moment and up to another.
CREATE FUNCTION oracle(cron text, zone text, after timestamptz, until timestamptz)
RETURNS SETOF timestamptz LANGUAGE plpgsql AS $$
DECLARE
    follows boolean := (fields(cron))[3] LIKE '*%';
    offsets interval[] := ARRAY(
        SELECT (after AT TIME ZONE zone) - (after AT TIME ZONE 'UTC')
        UNION SELECT c.after FROM changes AS c WHERE c.zone = oracle.zone
        UNION SELECT c.before FROM changes AS c WHERE c.zone = oracle.zone);
BEGIN
    RETURN QUERY
    WITH local AS MATERIALIZED (
        SELECT l FROM locals(cron, (after - interval '2 days')::date,
                             (until + interval '2 days')::date) AS l),
    valid AS MATERIALIZED (
        SELECT l, (l - o) AT TIME ZONE 'UTC' AS moment
        FROM local, unnest(offsets) AS o
        WHERE ((l - o) AT TIME ZONE 'UTC') AT TIME ZONE zone = l),
    moments AS (
        SELECT moment FROM valid WHERE follows
        UNION
        SELECT min(moment) FROM valid WHERE NOT follows GROUP BY l
        UNION
        SELECT c.moment
        FROM local, changes AS c
        WHERE NOT follows AND c.zone = oracle.zone
          AND l >= (c.moment AT TIME ZONE 'UTC') + c.before
          AND l < (c.moment AT TIME ZONE 'UTC') + c.after)
    SELECT moment FROM moments WHERE moment > after AND moment <= until ORDER BY moment;
END $$;

-- Do we and the oracle name the same moments?  An expression that never matches is refused.
CREATE FUNCTION agrees(cron text, zone text, after timestamptz, until timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    wanted timestamptz[] := ARRAY(SELECT oracle(cron, zone, after, until));
    found timestamptz[];
BEGIN
    found := ARRAY(SELECT pg_task_schedule(cron, after, cardinality(wanted) + 1, zone));
    RETURN found[:cardinality(wanted)] = wanted
       AND coalesce(found[cardinality(wanted) + 1] > until, true);
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN cardinality(wanted) = 0;
END $$;

-- What is refused, and how.

CREATE FUNCTION refuses(cron text, detail text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    code text;
    message text;
    got text;
BEGIN
    PERFORM pg_task_next(cron, '2024-01-01', 'UTC');
    RETURN is('accepted', detail, cron);
EXCEPTION WHEN others THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            got = PG_EXCEPTION_DETAIL;
    RETURN is(format('%s %s: %s', code, message, got),
              format('22023 invalid cron expression: "%s": %s', cron, detail),
              format('"%s" is refused', cron));
END $$;

SELECT refuses(cron, detail) FROM (VALUES
    ('', 'The expression has 0 fields instead of 5 or 6.'),
    ('* * * *', 'The expression has 4 fields instead of 5 or 6.'),
    ('0 0 12 * * ? 2025', 'The expression has 7 fields instead of 5 or 6.'),
    ('61 * * * *', 'At character 1, in the minute: a value must be between 0 and 59.'),
    ('60 * * * * *', 'At character 1, in the second: a value must be between 0 and 59.'),
    ('* 24 * * *', 'At character 3, in the hour: a value must be between 0 and 23.'),
    ('* * 0 * *', 'At character 5, in the day of month: a value must be between 1 and 31.'),
    ('* * 32 * *', 'At character 5, in the day of month: a value must be between 1 and 31.'),
    ('* * * 13 *', 'At character 7, in the month: a value must be between 1 and 12.'),
    ('* * * 0 *', 'At character 7, in the month: a value must be between 1 and 12.'),
    ('* * * * 8', 'At character 9, in the day of week: a value must be between 0 and 7.'),
    ('99999999999999999999 * * * *',
        'At character 1, in the minute: a value must be between 0 and 59.'),
    ('*/0 * * * *', 'At character 3, in the minute: a step must not be 0.'),
    ('*/61 * * * *',
        'At character 3, in the minute: the step is larger than the range of the field.'),
    ('*/ * * * *', 'At character 3, in the minute: a step, which is a number, was expected.'),
    ('5-1 * * * *', 'At character 3, in the minute: a range must not end before it begins.'),
    ('* * * * FRI-MON',
        'At character 13, in the day of week: a range must not end before it begins.'),
    ('1, * * * *', 'At character 3, in the minute: a number or "*" was expected.'),
    (',1 * * * *', 'At character 1, in the minute: a number or "*" was expected.'),
    ('1- * * * *', 'At character 3, in the minute: a number or "*" was expected.'),
    ('-1 * * * *', 'At character 1, in the minute: a number or "*" was expected.'),
    ('1.5 * * * *', 'At character 2, in the minute: this character was not expected.'),
    ('1-5-7 * * * *', 'At character 4, in the minute: this character was not expected.'),
    ('** * * * *', 'At character 2, in the minute: this character was not expected.'),
    ('*-5 * * * *', 'At character 2, in the minute: this character was not expected.'),
    ('0 0 ? * *', 'At character 5, in the day of month: "?" is not supported.'),
    ('0 0 $ * *', 'At character 5, in the day of month: "$" is not supported.'),
    ('0 0 LW * *', 'At character 6, in the day of month: this character was not expected.'),
    ('0 0 L-3 * *', 'At character 6, in the day of month: this character was not expected.'),
    ('0 0 1-5W * *', 'At character 8, in the day of month: this character was not expected.'),
    ('0 0 32W * *', 'At character 5, in the day of month: a value must be between 1 and 31.'),
    ('0 0 * * L', 'At character 9, in the day of week: a number, a name or "*" was expected.'),
    ('0 0 * * 5#6',
        'At character 11, in the day of week: a number between 1 and 5 was expected after "#".'),
    ('0 0 * * 5#',
        'At character 11, in the day of week: a number between 1 and 5 was expected after "#".'),
    ('0 0 * FOO *', 'At character 7, in the month: a number, a name or "*" was expected.'),
    ('0 0 * JANUARY *', 'At character 10, in the month: this character was not expected.'),
    ('0 JAN * * *', 'At character 3, in the hour: a number or "*" was expected.'),
    ('0 0 30 2 *', 'It never matches: there is no such day.'),
    ('0 0 31 4,6,9,11 *', 'It never matches: there is no such day.'),
    ('0 0 30W 2 *', 'It never matches: there is no such day.'),
    ('0 0 */31 * 1#2', 'It never matches: there is no such day.'),
    ('@fortnightly', 'The nickname at character 1 is not recognized.'),
    ('  @daily 5', 'The nickname at character 3 is not recognized.'),
    ('@', 'The nickname at character 1 is not recognized.')
) AS t (cron, detail);

-- Moments that follow from the rules, written down by hand.

CREATE FUNCTION names(cron text, after text, zone text, wanted text[], name text) RETURNS text
LANGUAGE sql AS $$
    SELECT is(ARRAY(SELECT pg_task_schedule(cron, after::timestamptz, cardinality(wanted), zone)),
              wanted::timestamptz[], format('%s in %s: %s', cron, zone, name))
$$;

SELECT names(cron, after, zone, wanted, name) FROM (VALUES
    ('* * * * *', '2024-01-01 00:00:59.999999', 'UTC', '{2024-01-01 00:01}'::text[], 'later than'),
    ('* * * * *', '2024-01-01 00:01', 'UTC', '{2024-01-01 00:02}', 'never the same moment'),
    ('* * * * *', '1969-12-31 23:59:59.5', 'UTC', '{1970-01-01 00:00}', 'before 1970'),
    ('* * * * *', '1999-12-31 23:59:59.5', 'UTC', '{2000-01-01 00:00}', 'before 2000'),
    ('* * * * * *', '2024-01-01 00:00:00.5', 'UTC', '{2024-01-01 00:00:01,2024-01-01 00:00:02}',
        'each second'),
    (E'\t0  12\t* * * ', '2024-01-01', 'UTC', '{2024-01-01 12:00}', 'blanks'),
    ('7/20 * * * *', '2024-01-01', 'UTC',
        '{2024-01-01 00:07,2024-01-01 00:27,2024-01-01 00:47,2024-01-01 01:07}',
        'a step without a range'),
    ('10-40/15 3 * * *', '2024-01-01', 'UTC',
        '{2024-01-01 03:10,2024-01-01 03:25,2024-01-01 03:40,2024-01-02 03:10}',
        'a step in a range'),
    ('0 */24 * * *', '2024-01-01', 'UTC', '{2024-01-02 00:00}', 'a step as large as the field'),
    ('0 0 * jan,Mar-MAY *', '2024-02-01', 'UTC', '{2024-03-01}', 'names of months'),
    ('0 0 * * mon-Fri', '2024-06-07', 'UTC', '{2024-06-10}', 'names of weekdays'),
    ('0 0 * * SUN', '2024-06-07', 'UTC', '{2024-06-09,2024-06-16}', 'Sunday by name'),
    ('0 0 * * FRI-SUN', '2024-06-09', 'UTC', '{2024-06-14,2024-06-15,2024-06-16}',
        'Sunday ends a range'),
    ('0 0 * * 0', '2024-06-07', 'UTC', '{2024-06-09}', 'Sunday is 0'),
    ('0 0 * * 7', '2024-06-07', 'UTC', '{2024-06-09}', 'Sunday is 7'),
    ('0 0 * * 5-7', '2024-06-09', 'UTC', '{2024-06-14,2024-06-15,2024-06-16}', 'a range up to 7'),
    ('0 0 13 * 5', '2024-06-01', 'UTC', '{2024-06-07,2024-06-13,2024-06-14}',
        'either day, as crontab(5)'),
    ('0 0 */13 * 5', '2024-06-01', 'UTC', '{2024-06-14,2024-09-27}',
        'both days, for one begins with "*"'),
    ('0 0 L * *', '2024-01-31', 'UTC', '{2024-02-29,2024-03-31,2024-04-30}', 'the last day'),
    ('0 0 1,L * *', '2024-02-02', 'UTC', '{2024-02-29,2024-03-01}', 'the last day in a list'),
    ('0 0 * * 5L', '2024-05-31', 'UTC', '{2024-06-28,2024-07-26,2024-08-30}', 'the last Friday'),
    ('0 0 * * friL', '2024-05-31', 'UTC', '{2024-06-28}', 'the last Friday by name'),
    ('0 0 15W * *', '2024-05-31', 'UTC', '{2024-06-14,2024-07-15,2024-08-15,2024-09-16}',
        'the workday nearest to the 15th'),
    ('0 0 1W * *', '2024-05-31', 'UTC', '{2024-06-03}', 'not in the month before'),
    ('0 0 30W 6 *', '2024-05-31', 'UTC', '{2024-06-28}', 'not in the month behind'),
    ('0 0 31W * *', '2024-03-30', 'UTC', '{2024-05-31}', 'not in a month without a 31st'),
    ('0 0 * * 5#2', '2024-05-31', 'UTC', '{2024-06-14,2024-07-12}', 'the second Friday'),
    ('0 0 * * MON#1,MON#3', '2024-05-31', 'UTC', '{2024-06-03,2024-06-17}',
        'the first and third Monday'),
    ('0 0 * 2 4#5', '2024-03-01', 'UTC', '{2052-02-29}', 'a fifth Thursday of February'),
    ('0 0 29 2 *', '1896-03-01', 'UTC', '{1904-02-29}', '1900 was no leap year'),
    ('0 0 29 2 *', '2024-03-01', 'UTC', '{2028-02-29}', 'a leap year'),
    ('@yearly', '2024-06-07', 'UTC', '{2025-01-01}', ''), ('@annually', '2024-06-07', 'UTC',
        '{2025-01-01}', ''),
    ('@monthly', '2024-06-07', 'UTC', '{2024-07-01}', ''), ('@weekly', '2024-06-07', 'UTC',
        '{2024-06-09}', ''),
    ('@Daily', '2024-06-07', 'UTC', '{2024-06-08}', ''), (' @midnight ', '2024-06-07', 'UTC',
        '{2024-06-08}', ''),
    ('@hourly', '2024-06-07', 'UTC', '{2024-06-07 01:00}', ''),
    ('30 2 * * *', '2024-03-30 02:30+01', 'Europe/Berlin',
        '{2024-03-31 03:00+02,2024-04-01 02:30+02}', 'a time in the gap, at its end'),
    ('*/10 2 * * *', '2024-03-30 03:00+01', 'Europe/Berlin',
        '{2024-03-31 03:00+02,2024-04-01 02:00+02}', 'several in the gap run once'),
    ('30 1-3 * * *', '2024-03-31 00:00+01', 'Europe/Berlin',
        '{2024-03-31 01:30+01,2024-03-31 03:00+02,2024-03-31 03:30+02}',
        'one of several in the gap'),
    ('30 * * * *', '2024-03-31 01:00+01', 'Europe/Berlin',
        '{2024-03-31 01:30+01,2024-03-31 03:30+02}', 'what follows the clock has no gap'),
    ('30 2 * * *', '2024-10-27 00:00+02', 'Europe/Berlin',
        '{2024-10-27 02:30+02,2024-10-28 02:30+01}', 'what occurs twice, at its first'),
    ('30 2 * * *', '2024-10-27 02:30+02', 'Europe/Berlin', '{2024-10-28 02:30+01}',
        'not the second time'),
    ('30 * * * *', '2024-10-27 01:45+02', 'Europe/Berlin',
        '{2024-10-27 02:30+02,2024-10-27 02:30+01,2024-10-27 03:30+01}',
        'twice for what follows the clock'),
    ('30 */2 * * *', '2024-10-27 01:45+02', 'Europe/Berlin',
        '{2024-10-27 02:30+02,2024-10-27 02:30+01,2024-10-27 04:30+01}',
        'a step follows the clock as well'),
    ('15 0 * * *', '2024-03-09 12:00-05', 'America/Havana',
        '{2024-03-10 01:00-04,2024-03-11 00:15-04}', 'midnight in the gap'),
    ('10 2 * * *', '2024-10-05 12:00+10:30', 'Australia/Lord_Howe',
        '{2024-10-06 02:30+11,2024-10-07 02:10+11}', 'a gap of half an hour'),
    ('45 1 * * *', '2024-04-06 12:00+11', 'Australia/Lord_Howe',
        '{2024-04-07 01:45+11,2024-04-08 01:45+10:30}', 'half an hour twice'),
    ('0 12 * * *', '2011-12-29 00:00-10', 'Pacific/Apia',
        '{2011-12-29 12:00-10,2011-12-31 00:00+14,2011-12-31 12:00+14}', 'a day that never was'),
    ('0 */12 * * *', '2011-12-29 01:00-10', 'Pacific/Apia',
        '{2011-12-29 12:00-10,2011-12-31 00:00+14,2011-12-31 12:00+14}', 'the same by the clock'),
    ('0 0 * * *', '2024-01-01', 'Asia/Kathmandu', '{2024-01-01 18:15,2024-01-02 18:15}',
        'three quarters of an hour')
) AS t (cron, after, zone, wanted, name);

SELECT is(pg_task_next('@reboot', '2024-01-01', 'UTC'), NULL, '@reboot names no time');
SELECT is(pg_task_next('0 0 * * *', after, 'UTC'), NULL, format('none after %s', after))
FROM unnest('{infinity,-infinity,294000-01-01}'::timestamptz[]) AS after;
SELECT is(pg_task_next('0 0 1 1 *', '4713-01-01 BC', 'UTC'), '4712-01-01 BC'::timestamptz,
          'the first years');
SELECT is(pg_task_next('30 12 1 7 */7', '2767-01-01', 'Europe/Berlin'), '2773-07-01 12:30+02',
          'the offset changes after the last change in the table of the zone');
SELECT throws_ok($$SELECT pg_task_next('* * * * *', now(), 'right/Europe/Berlin')$$, '22023',
                 'time zone "right/Europe/Berlin" not recognized', 'a zone with leap seconds');
SELECT is(pg_task_next('0 0 1 1 *', now()), date_trunc('year', now()) + interval '1 year',
          'the zone of the session');
SELECT is(pg_task_next('* * * * *'), date_trunc('minute', now()) + interval '1 min',
          'later than now');
SELECT throws_ok($$SELECT pg_task_next('* * * * *', now(), 'Nowhere/Land')$$, '22023',
                 'time zone "Nowhere/Land" not recognized');
SELECT throws_ok($$SELECT pg_task_schedule('* * * * *', now(), 1, 'Nowhere/Land')$$, '22023',
                 'time zone "Nowhere/Land" not recognized');
SELECT throws_ok($$SELECT pg_task_schedule('* * * * *', now(), -1)$$, '2201W',
                 'LIMIT must not be negative');
SELECT throws_ok($$SELECT pg_task_schedule('* * * *', now(), 1)$$, '22023',
                 'invalid cron expression: "* * * *"');
SELECT is_empty($$SELECT pg_task_schedule('* * * * *', now(), 0)$$, 'no times');
SELECT is_empty($$SELECT pg_task_schedule('@reboot', now(), 5)$$, 'no times of @reboot');
SELECT is_empty($$SELECT pg_task_schedule(NULL::text, now(), 5)$$, 'no times of NULL');
SELECT is(ARRAY(SELECT pg_task_schedule(interval '1 month', '2024-01-31 12:00', 3, 'UTC')),
          '{2024-02-29 12:00,2024-03-31 12:00,2024-04-30 12:00}'::timestamptz[],
          'month ends do not walk');
SELECT is(ARRAY(SELECT pg_task_schedule(interval '1 day', '2024-03-30 02:30+01', 3,
                                        'Europe/Berlin')),
          '{2024-03-31 03:30+02,2024-04-01 02:30+02,2024-04-02 02:30+02}'::timestamptz[],
          'nor do days');
SELECT is_empty($$SELECT pg_task_schedule(interval '0', now(), 5)$$,
                'an interval that does not advance');

-- The oracle, around each change of the clock from 2024 to 2028.

CREATE TEMP TABLE zones AS SELECT unnest('{
    Europe/Berlin, Europe/London, Africa/Cairo, Africa/Casablanca, America/New_York, America/Havana,
    America/Santiago, America/Asuncion, America/Sao_Paulo, Asia/Jerusalem, Asia/Kathmandu,
    Asia/Gaza, Atlantic/Azores, Australia/Lord_Howe, Australia/Sydney, Pacific/Apia,
    Pacific/Auckland, Pacific/Chatham, Antarctica/Troll, UTC}'::text[]) AS zone;
SELECT find_changes(ARRAY(SELECT zone FROM zones), '2023-12-01', '2029-01-31');
SELECT cmp_ok(count(*)::int, '>=', 120, 'changes of the clock') FROM changes;
SELECT cmp_ok(count(DISTINCT zone)::int, '>=', 12, 'zones that change their clocks') FROM changes;

SELECT is_empty(format($$
    SELECT moment, cron
    FROM changes, unnest('{30 2 * * *,*/10 2 * * *,*/30 * * * *,15 */2 * * *,5 0-3 * * *,45 1 * * *,
                          20 0 * * *,0 30 23\,0\,1\,2\,3 * * *,0 0 L * 0}'::text[]) AS cron
    WHERE zone = %L
      AND NOT agrees(cron, zone, moment - interval '30 hours', moment + interval '30 hours')
    $$, zone), 'as a walk over local days around each change in ' || zone)
FROM zones;

-- The same expressions after moments within an hour or two of the change.
SELECT is_empty($$
    SELECT zone, moment, cron, minutes
    FROM changes, unnest('{30 2 * * *,*/20 0-3 * * *,*/20 * * * *}'::text[]) AS cron,
        generate_series(-150, 150, 30) AS minutes
    WHERE moment BETWEEN '2026-01-01' AND '2026-12-31'
      AND NOT agrees(cron, zone, moment + minutes * interval '1 min', moment + interval '6 hours')
    $$, 'wherever one begins');

-- Expressions that were made up, for two years in three zones.
SELECT setseed(0.20261121);

-- A whole number from low to high.  It is asked for once per row, because it depends on the row.
CREATE FUNCTION pick(n int, low int, high int) RETURNS int LANGUAGE sql VOLATILE AS $$
    SELECT low + floor(random() * (high - low + 1))::int + n * 0
$$;

CREATE FUNCTION pick_day(n int) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE pick(n, 0, 6)
        WHEN 0 THEN '*' WHEN 1 THEN 'L' WHEN 2 THEN pick(n, 1, 28) || 'W'
        WHEN 3 THEN '*/' || pick(n, 2, 14)
        WHEN 4 THEN pick(n, 1, 14) || '-' || pick(n, 15, 28) || '/3'
        ELSE pick(n, 1, 28) || ',' || pick(n, 1, 28) END
$$;

CREATE FUNCTION pick_weekday(n int) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE pick(n, 0, 6)
        WHEN 0 THEN pick(n, 0, 7) || 'L' WHEN 1 THEN pick(n, 0, 7) || '#' || pick(n, 1, 4)
        WHEN 2 THEN pick(n, 0, 2) || '-' || pick(n, 3, 7) WHEN 3 THEN pick(n, 0, 7)::text
        ELSE '*' END
$$;

CREATE TEMP TABLE made AS
    SELECT n, concat_ws(' ', pick(n, 0, 59),
        CASE pick(n, 0, 3) WHEN 0 THEN '*/' || pick(n, 2, 22) ELSE pick(n, 0, 23)::text END,
        pick_day(n),
        CASE pick(n, 0, 3) WHEN 0 THEN pick(n, 1, 12)::text WHEN 1 THEN '2-11/3' ELSE '*' END,
        pick_weekday(n)) AS cron
    FROM generate_series(1, 240) AS n;
SELECT cmp_ok(count(DISTINCT cron)::int, '>=', 230, 'made-up expressions') FROM made;
SELECT is_empty($$
    SELECT cron, zone
    FROM made, unnest('{America/New_York,Europe/Berlin,Australia/Lord_Howe}'::text[]) AS zone
    WHERE n % 3 = CASE zone WHEN 'America/New_York' THEN 0 WHEN 'Europe/Berlin' THEN 1 ELSE 2 END
      AND NOT agrees(cron, zone, '2025-01-10', '2027-01-10')
    $$, 'as a walk over two years');

SELECT * FROM finish();
ROLLBACK;
