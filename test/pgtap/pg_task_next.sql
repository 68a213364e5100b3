-- pg_task_next(planned, repeat, drift, ended, timezone): when a repeating task runs next.
BEGIN;
SELECT no_plan();
SET LOCAL TimeZone = 'UTC';
SET LOCAL IntervalStyle = 'postgres';

-- The expected result, found step by step: the first planned + n * repeat after the end, or one
-- interval after the end, both as a session in that time zone adds.
CREATE FUNCTION walk(planned timestamptz, step interval, drift boolean, ended timestamptz,
    zone text)
    RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    n bigint := 1;
BEGIN
    PERFORM set_config('TimeZone', zone, true);
    IF NOT drift THEN
        RETURN ended + step;
    END IF;
    WHILE planned + n * step <= ended LOOP
        n := n + 1;
    END LOOP;
    RETURN planned + n * step;
END $$;

CREATE FUNCTION next_is(planned text, step interval, drift boolean, ended text, zone text,
    wanted text, name text)
    RETURNS text LANGUAGE sql AS $$
    SELECT is(pg_task_next(planned::timestamptz, step, drift, ended::timestamptz, zone),
        wanted::timestamptz, name)
$$;

-- true counts from the planned time, false from the end
SELECT next_is('2024-01-01 12:00Z', '5 min', true, '2024-01-01 12:01Z', 'UTC', '2024-01-01 12:05Z',
    'from the planned time');
SELECT next_is('2024-01-01 12:00Z', '5 min', false, '2024-01-01 12:01Z', 'UTC', '2024-01-01 12:06Z',
    'from the end');
SELECT next_is('2024-01-01 12:00Z', '5 min', true, '2024-01-01 12:05Z', 'UTC', '2024-01-01 12:10Z',
    'in the future, not now');
SELECT next_is('2024-01-01 12:00Z', '5 min', true, '2024-01-01 12:04:59.999999Z', 'UTC',
    '2024-01-01 12:05Z', 'the very next microsecond will do');
SELECT next_is('2024-01-01 12:00Z', '5 min', true, '2024-01-01 11:00Z', 'UTC', '2024-01-01 12:05Z',
    'never the same run again, whatever the clock says');

-- missed runs are skipped
SELECT next_is('2019-07-01 00:00Z', '5 min', true, '2024-07-01 12:02Z', 'UTC', '2024-07-01 12:05Z',
    'five years of five minutes');
SELECT next_is('1999-12-31 23:59:59Z', '1 s', true, '2024-02-29 12:00:00.5Z', 'UTC',
    '2024-02-29 12:00:01Z', 'decades of seconds');
SELECT next_is('2019-07-01 00:00Z', '1 month', true, '2024-07-15 00:00Z', 'UTC',
    '2024-08-01 00:00Z', 'five years of months');
SELECT next_is('2019-07-01 00:00Z', '1 microsecond', true, '2024-07-01 00:00:00.000001Z', 'UTC',
    '2024-07-01 00:00:00.000002Z', 'five years of microseconds');
SELECT next_is('0044-03-15 12:00Z BC', '7 microseconds', true, '2024-07-01 00:00Z', 'UTC',
    (SELECT (timestamptz '2024-07-01 00:00Z' + (7 - d % 7) * interval '1 microsecond')::text
       FROM (SELECT (extract(epoch FROM timestamptz '2024-07-01 00:00Z') - extract(epoch
           FROM timestamptz '0044-03-15 12:00Z BC')) * 1000000) AS x (d)),
    'two millennia of seven microseconds');

-- the end of a month, and of February
SELECT next_is('2023-01-31 10:00Z', '1 month', true, '2023-01-31 11:00Z', 'UTC',
    '2023-02-28 10:00Z', 'there is no 31st of February');
SELECT next_is('2023-01-31 10:00Z', '1 month', true, '2023-03-01 11:00Z', 'UTC',
    '2023-03-31 10:00Z', 'but one of March');
SELECT next_is('2024-01-31 10:00Z', '1 month', true, '2024-02-01 11:00Z', 'UTC',
    '2024-02-29 10:00Z', 'in a leap year');
SELECT next_is('2024-02-29 10:00Z', '1 year', true, '2024-03-01 00:00Z', 'UTC', '2025-02-28 10:00Z',
    'a year after the 29th of February');
SELECT next_is('2024-02-29 10:00Z', '1 year', true, '2027-03-01 00:00Z', 'UTC', '2028-02-29 10:00Z',
    'and four years after');
SELECT next_is('1896-02-29 00:00Z', '4 years', true, '1899-01-01 00:00Z', 'UTC',
    '1900-02-28 00:00Z', '1900 was none');
SELECT next_is('2024-01-31 00:00Z', '1 month 1 day', true, '2024-01-31 00:00Z', 'UTC',
    '2024-03-01 00:00Z', 'months first, then days');

-- when the clocks go forward and back
SELECT next_is('2024-03-30 08:00+01', '1 day', true, '2024-03-30 09:00+01', 'Europe/Berlin',
    '2024-03-31 08:00+02', 'a day of 23 hours');
SELECT next_is('2024-10-26 08:00+02', '1 day', true, '2024-10-26 09:00+02', 'Europe/Berlin',
    '2024-10-27 08:00+01', 'a day of 25 hours');
SELECT next_is('2024-03-30 08:00+01', '24 hours', true, '2024-03-30 09:00+01', 'Europe/Berlin',
    '2024-03-31 09:00+02', '24 hours are not a day');
SELECT next_is('2024-03-30 02:30+01', '1 day', true, '2024-03-30 03:00+01', 'Europe/Berlin',
    '2024-03-31 03:30+02', 'a time that does not exist');
SELECT next_is('2024-03-30 02:30+01', '1 day', true, '2024-03-31 12:00+02', 'Europe/Berlin',
    '2024-04-01 02:30+02', 'and again the day after');
SELECT next_is('2024-11-02 01:30-04', '1 day', true, '2024-11-02 02:00-04', 'America/New_York',
    '2024-11-03 01:30-05', 'a time that comes twice');
SELECT next_is('2024-11-03 01:30-04', '1 hour', true, '2024-11-03 01:45-04', 'America/New_York',
    '2024-11-03 01:30-05', 'the same hour twice');
SELECT next_is('2024-04-06 12:00+11', '1 day', true, '2024-04-06 13:00+11', 'Australia/Lord_Howe',
    '2024-04-07 12:00+10:30', 'half an hour back');
SELECT next_is('2024-10-05 12:00+10:30', '1 day', true, '2024-10-05 13:00+10:30',
    'Australia/Lord_Howe', '2024-10-06 12:00+11', 'half an hour forward');
SELECT next_is('2011-12-29 12:00-10', '1 day', true, '2011-12-29 13:00-10', 'Pacific/Apia',
    '2011-12-31 12:00+14', 'a day that Samoa left out');
SELECT next_is('2024-03-30 08:00+01', '1 day', false, '2024-03-30 09:00+01', 'Europe/Berlin',
    '2024-03-31 09:00+02', 'from the end, too, a day is one of that zone');

-- the zone of the session is the default, and only that
SET LOCAL TimeZone = 'Europe/Berlin';
SELECT is(pg_task_next('2024-03-30 08:00+01', '1 day', true, '2024-03-30 09:00+01'),
    '2024-03-31 08:00+02', 'the session''s zone');
SELECT is(pg_task_next('2024-03-30 08:00+01', '1 day', true, '2024-03-30 09:00+01', 'UTC'),
    '2024-03-31 07:00Z', 'another zone');
SET LOCAL TimeZone = 'UTC';
SELECT throws_like($$SELECT pg_task_next(now(), '1 day', true, now(), 'Nowhere/Land')$$,
    '%Nowhere/Land%');

-- never
SELECT is(pg_task_next(now(), step, drift, now(), 'UTC'), NULL, format('never: %s, %s', step,
    drift))
  FROM unnest(ARRAY['0', '-1 s', '-1 month', '178000000 years']::interval[]) AS step,
      unnest(ARRAY[true, false]) AS drift;
SELECT is(pg_task_next(planned, '1 day', drift, ended, 'UTC'), NULL, format('never: %s, %s, %s',
    planned, ended, drift))
  FROM (VALUES ('infinity'::timestamptz, '2024-01-01'::timestamptz, true),
      ('-infinity', '2024-01-01', true),
               ('2024-01-01', 'infinity', true), ('2024-01-01', 'infinity', false),
                   ('2024-01-01', '-infinity', false),
               ('294276-12-31', '294276-12-31 12:00', true)) AS x (planned, ended, drift);
SELECT is(pg_task_next(NULL, '1 day', true, now(), 'UTC'), NULL, 'nothing of nothing');

-- Times far away.
SELECT next_is('2024-01-01 00:00Z', '290000 years', true, '2024-01-02 00:00Z', 'UTC',
    '292024-01-01 00:00Z', 'in 290,000 years');
SELECT next_is('4713-01-02 00:00Z BC', '100000 days', true, '250000-01-01 00:00Z', 'UTC',
    (SELECT (timestamptz '4713-01-02 00:00Z BC' + n * interval '100000 days')::text
       FROM (SELECT 1 + floor((extract(epoch FROM timestamptz '250000-01-01 00:00Z') - extract(epoch
           FROM timestamptz '4713-01-02 00:00Z BC')) / 8640000000)) AS x (n)),
    'from one end of time to the other');

-- Thousands of random cases, compared with walk().
SELECT setseed(0.42);
CREATE TEMP TABLE cases AS
SELECT zone, planned, step, drift,
       planned + (random() * 60) * step + (random() - 0.5) * interval '3 hours' AS ended
  FROM (SELECT (ARRAY['UTC', 'Europe/Berlin', 'America/New_York', 'Australia/Lord_Howe',
      'America/St_Johns',
                      'Asia/Kathmandu', 'Pacific/Apia', 'Africa/Casablanca',
                          'America/Sao_Paulo'])[1 + floor(random() * 9)] AS zone,
               timestamptz '1995-01-01 00:00Z' + random() * interval '30 years' AS planned,
               CASE floor(random() * 6)::int
                   WHEN 0 THEN (1 + floor(random() * 3)) * interval '1 month'
                   WHEN 1 THEN (1 + floor(random() * 10)) * interval '1 day'
                   WHEN 2
                       THEN (1 + floor(random() * 3)) * interval '1 month' + floor(random() * 40) *
                       interval '1 day'
                               + floor(random() * 100) * interval '1 hour'
                   WHEN 3 THEN (1 + floor(random() * 100)) * interval '1 minute'
                   WHEN 4 THEN interval '1 year'
                   ELSE interval '1 day' + floor(random() * 86400) * interval '1 second' END
                       AS step,
               random() < 0.8 AS drift
          FROM generate_series(1, 5000)) AS x;
SELECT is(count(*), 5000::bigint, 'cases') FROM cases;
SELECT is(count(*), 0::bigint, 'all as by walking' || coalesce(', but not ' || min(concat_ws(' / ',
    zone, planned, step, drift, ended, got, wanted)), ''))
  FROM (SELECT *, pg_task_next(planned, step, drift, ended, zone) AS got,
               walk(planned, step, drift, ended, zone) AS wanted FROM cases) AS x
 WHERE got IS DISTINCT FROM wanted;

-- The end of the calendar.
SELECT is(pg_task_next('2026-01-01 00:00:00 UTC', '1 h', true, '294276-12-31 13:59:58 UTC', 'UTC'),
    '294276-12-31 14:00:00 UTC'::timestamptz, 'the last hours');
SELECT is(pg_task_next('2026-01-01 00:00:00 UTC', '1 h', true, '294276-12-31 23:59:58 UTC', 'UTC'),
    NULL, 'there is none');

SELECT * FROM finish();
ROLLBACK;
