"""The oracle of schedule_oracle.pl: what docs/repeating.md and docs/columns.md say of the times of
a schedule, once more, with the calendar and the time zones of Python.

    schedule_oracle.py zones
        the names of time zones that the schedules are in, one a line
    schedule_oracle.py generate SEED < changes of these zones, as the server knows them
        schedules, windows and calls to try, as JSON
    schedule_oracle.py expect < the same JSON, with each expression as it is in its row
        the times that each of them must have

Moments are whole numbers: microseconds since 1970.  A "H" is replaced by the server, by a value
that the manual leaves open, so this must be told the expression that the row has.
"""

import bisect
import calendar
import itertools
import json
import random
import re
import sys
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

SECOND = 1000000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
EPOCH = datetime(1970, 1, 1)
LIMIT = 1500    # runs of one schedule in a year

# Shifts of an hour, half of one and two; at midnight, before it, and twice a year more for Ramadan;
# negative DST; odd offsets; none at all.
ZONES = """UTC Europe/Berlin Europe/Dublin America/New_York America/St_Johns America/Havana
    America/Santiago Atlantic/Azores Africa/Cairo Africa/Casablanca Asia/Beirut Asia/Kolkata
    Asia/Kathmandu Australia/Lord_Howe Australia/Sydney Pacific/Chatham Antarctica/Troll""".split()


# Time zones ------------------------------------------------------------------------------------

class Zone:
    """The clock of a time zone from late in the year before to early in the year after."""

    def __init__(self, name, year):
        self.info = ZoneInfo(name)
        self.changes = []
        begin, end = moment(datetime(year - 1, 11, 1)), moment(datetime(year + 1, 3, 1))
        for at in range(begin, end, DAY // 4):
            before, after = self.offset(at), self.offset(at + DAY // 4)
            if before != after:
                low, high = at // SECOND, (at + DAY // 4) // SECOND
                while high - low > 1:
                    middle = (low + high) // 2
                    if self.offset(middle * SECOND) == before:
                        low = middle
                    else:
                        high = middle
                self.changes.append((high * SECOND, before, after))
        # days whose local times need a closer look
        self.odd = {(EPOCH + timedelta(microseconds=at + before)).date() + timedelta(n)
                    for at, before, _ in self.changes for n in (-1, 0, 1)}

    def offset(self, at):
        utc = (EPOCH + timedelta(microseconds=at)).replace(tzinfo=timezone.utc)
        return utc.astimezone(self.info).utcoffset() // timedelta(microseconds=1)

    def local(self, at):
        return EPOCH + timedelta(microseconds=at + self.offset(at))

    def moments(self, local):
        """The moments at which the clock shows this time: none, one or two."""
        found = []
        for fold in (0, 1):
            offset = local.replace(tzinfo=self.info, fold=fold).utcoffset()
            at = moment(local - offset)
            if self.local(at) == local and at not in found:
                found.append(at)
        return found

    def after_gap(self, local):
        """The first moment after a gap in which this time is."""
        before = local.replace(tzinfo=self.info, fold=0).utcoffset() // timedelta(microseconds=1)
        after = local.replace(tzinfo=self.info, fold=1).utcoffset() // timedelta(microseconds=1)
        late, early = moment(local) - before, moment(local) - after
        for at, *offsets in self.changes:
            if early < at <= late and offsets == [before, after]:
                return at
        raise ValueError(f"no gap at {local} in {self.info}")

    def instant(self, local):
        """As PostgreSQL reads a local time: by the offset before a gap; as the second of two."""
        fold = 1 if len(self.moments(local)) == 2 else 0
        return moment(local - local.replace(tzinfo=self.info, fold=fold).utcoffset())


def moment(utc):
    return (utc - EPOCH) // timedelta(microseconds=1)


def zone_of(name, year, known={}):
    if (name, year) not in known:
        known[name, year] = Zone(name, year)
    return known[name, year]


# Cron ------------------------------------------------------------------------------------------

MONTHS = {name: n for n, name in enumerate(
    "jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
WEEKDAYS = {name: n for n, name in enumerate("sun mon tue wed thu fri sat".split())}
NICKNAMES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *"}


class Cron:
    def __init__(self, text):
        fields = NICKNAMES.get(text.lower(), text).lower().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        second, minute, hour, day, month, weekday = fields
        self.times = [timedelta(hours=h, minutes=m, seconds=s)
                      for h in self.values(hour, 0, 23)
                      for m in self.values(minute, 0, 59)
                      for s in self.values(second, 0, 59)]
        self.every_hour = hour.startswith("*")
        self.months = set(self.values(month, 1, 12, MONTHS))
        self.days, self.weekdays = day.split(","), weekday.split(",")
        self.either = not day.startswith("*") and not weekday.startswith("*")

    @staticmethod
    def values(field, low, high, names=None):
        names = names or {}
        found = set()

        def number(word):
            return names[word] if word in names else int(word)
        for element in field.split(","):
            span, _, step = element.partition("/")
            first, _, last = span.partition("-")
            if span == "*":
                begin, end = low, high
            elif last:
                begin, end = number(first), number(last)
                # the manual: 0 and 7 are Sunday
                if last == "sun" and begin:
                    end = 7
            else:
                begin = number(first)
                # of the week, to Saturday, which the manual does not say
                end = max(begin, 6 if high == 7 else high) if step else begin
            if not low <= begin <= end <= high:
                raise ValueError(element)
            found.update(range(begin, end + 1, int(step or 1)))
        return sorted(found)

    def matches_day(self, day):
        last = calendar.monthrange(day.year, day.month)[1]
        return any(self.by_day(element, day, last) for element in self.days)

    def by_day(self, element, day, last):
        if element == "l":
            return day.day == last
        if element.endswith("w"):
            number = int(element[:-1])
            # so does 31W not match in a month of 30 days, which the manual does not say
            if number > last:
                return False
            wanted = day.replace(day=number)
            work = [day.replace(day=n) for n in range(1, last + 1)
                    if day.replace(day=n).weekday() < 5]
            # of a Saturday and a Sunday, only one workday is nearest
            return day == min(work, key=lambda other: abs(other - wanted))
        return day.day in self.values(element, 1, 31)

    def matches_weekday(self, day):
        last = calendar.monthrange(day.year, day.month)[1]
        number = day.isoweekday() % 7
        for element in self.weekdays:
            if element.endswith("l"):
                if self.values(element[:-1], 0, 7, WEEKDAYS)[0] % 7 == number\
                        and day.day + 7 > last:
                    return True
            elif "#" in element:
                which, count = element.split("#")
                if self.values(which, 0, 7, WEEKDAYS)[0] % 7 == number\
                        and (day.day + 6) // 7 == int(count):
                    return True
            elif number in {n % 7 for n in self.values(element, 0, 7, WEEKDAYS)}:
                return True
        return False

    def matches(self, day):
        if day.month not in self.months:
            return False
        found = self.matches_day(day), self.matches_weekday(day)
        return any(found) if self.either else all(found)

    def times_from(self, since, zone, end):
        """The matches at or after a moment, in order, up to one."""
        day, last = zone.local(since).date() - timedelta(1), zone.local(end).date()
        while day <= last:
            if self.matches(day):
                yield from (at for at in self.on(day, zone) if since <= at <= end)
            day += timedelta(1)

    def on(self, day, zone):
        begin = datetime(day.year, day.month, day.day)
        if day not in zone.odd:
            first = zone.instant(begin)
            return [first + time // timedelta(microseconds=1) for time in self.times]
        found = set()
        for time in self.times:
            moments = zone.moments(begin + time)
            if self.every_hour:
                found.update(moments)
            else:
                found.add(moments[0] if moments else zone.after_gap(begin + time))
        return sorted(found)


# Schedules -------------------------------------------------------------------------------------

def add(at, repeat, count, zone):
    """at + count * repeat, on the clock of the zone."""
    months, days, rest = (count * part for part in repeat)
    if months or days:
        local = zone.local(at)
        year, month = divmod(local.year * 12 + local.month - 1 + months, 12)
        local = local.replace(year=year, month=month + 1, day=min(
            local.day, calendar.monthrange(year, month + 1)[1]))
        at = zone.instant(local + timedelta(days))
    return at + rest


def counted(anchor, repeat, since, zone, end):
    """anchor + n * repeat at or after a moment, in order, up to one."""
    months, days, rest = repeat
    length = int((months * 30.436875 + days) * DAY) + rest
    for n in itertools.count(max(0, (since - anchor - 5 * DAY) // length - 1)):
        at = add(anchor, repeat, n, zone)
        if at > end:
            return
        if at >= since:
            yield at


def anew(schedule, zone):
    """Is the time of the waiting row none of those from its anchor on?"""
    dt = schedule.get("moved", schedule["dt"])
    return "anchor" in schedule and dt not in counted(
        schedule["anchor"], schedule["parts"], dt, zone, dt)


def chain(schedule, year, end):
    """The times of the waiting row and of those that will follow."""
    zone = zone_of(schedule["zone"], year)
    dt = schedule["dt"]
    if schedule.get("cron"):
        cron = Cron(schedule["cron"])
        following = cron.times_from(dt, zone, end)
        if "moved" in schedule:
            dt = schedule["moved"]
            following = itertools.chain([dt], cron.times_from(dt + 1, zone, end))
    else:
        # of a first run that is moved, no other anchor is known
        dt = schedule.get("moved", dt)
        repeat, anchor = schedule["parts"], schedule.get("anchor", dt)
        if not schedule["drift"]:
            following = itertools.accumulate(
                itertools.count(), lambda at, _: add(at, repeat, 1, zone), initial=dt)
            following = itertools.takewhile(lambda at: at <= end, following)
        else:
            if anew(schedule, zone):
                anchor = dt
            following = counted(anchor, repeat, dt, zone, end)
    until = schedule.get("until", end)
    following = itertools.takewhile(lambda at: at <= until, following)
    return itertools.islice(following, schedule.get("runs_left"))


# The generator ---------------------------------------------------------------------------------

# What has its own sentence in the manual is always there: expression, zone.
CRONS = """30 2 * * *|Europe/Berlin
*/10 2 * * *|Europe/Berlin
30 * * * *|Europe/Berlin
0,20 1-3 * * *|Europe/Berlin
15 2,3 * * sun|Europe/Berlin
*/30 */2 * * *|Australia/Lord_Howe
45 1 * * *|Australia/Lord_Howe
15 2 * * *|Australia/Lord_Howe
@hourly|Australia/Lord_Howe
30 0 * * *|Africa/Cairo
@daily|Africa/Cairo
30 23 * * *|America/Santiago
@midnight|America/Havana
0 1,2 * * *|Antarctica/Troll
0 0 29 2 *|UTC
0 12 L 2 *|Asia/Kolkata
0 12 1W * *|Europe/Berlin
0 12 15w,L * *|America/New_York
0 12 31W,30W * *|America/New_York
0 0 * * 5#5|UTC
0 0 * * 0L,7#2|Asia/Kathmandu
0 0 13 * 5|UTC
0 0 */2 * 1|UTC
0 0 13 * */2|UTC
0 0 * * 1/2|UTC
0 6 L * 1#1,MON-Tue|Europe/Dublin
59 59 23 L FEB,Dec *|America/St_Johns
*/20 */15 1 29 2 *|Pacific/Chatham
@yearly|UTC
@annually|Asia/Beirut
@monthly|Africa/Casablanca
@weekly|Atlantic/Azores
H H(0-5) * * *|Europe/Berlin
H(0-29)/10 H/8 * * H|Australia/Sydney
H * * H H *|America/Havana""".split("\n")

# Repeat, local time of the anchor, zone: "year" is that of the test.
REPEATS = """1 mon|year-01-31 12:00|Europe/Berlin
1 mon|2027-08-31 02:30|Europe/Berlin
3 mons|2027-11-30 23:59|America/New_York
1 year|2024-02-29 00:00|Asia/Kolkata
6 mons|2024-02-29 01:45|Australia/Lord_Howe
1 day|year-01-01 02:30|Europe/Berlin
1 day|year-01-01 02:15|Australia/Lord_Howe
1 day|year-01-01 00:30|Africa/Cairo
24:00:00|year-01-01 02:30|Europe/Berlin
7 days|2024-02-29 01:30|America/St_Johns
1 mon 1 day|2027-01-31 02:30|Europe/Berlin
1 day 12:00:00|year-01-01 01:30|America/Santiago
1 mon -1 days|2027-12-31 00:00|Antarctica/Troll
-1 days +48:00:00|year-01-01 00:00|UTC""".split("\n")


class Generator:
    def __init__(self, seed, changes, year):
        self.random = random.Random(seed)
        self.year = year
        self.begin = moment(datetime(self.year, 1, 1))
        self.end = moment(datetime(self.year + 1, 1, 1))
        # older or newer rules on one side are no defect
        self.zones, self.different = [], []
        for name in ZONES:
            mine = [[at, after] for at, _, after in zone_of(name, self.year).changes]
            theirs = [[at, after] for at, after in changes.get(name, [])
                      if moment(datetime(self.year - 1, 11, 1)) < at < moment(
                          datetime(self.year + 1, 3, 1))]
            (self.zones if theirs == mine else self.different).append(name)

    def chance(self, part):
        return self.random.random() < part

    def pick(self, *choices):
        return self.random.choice(choices)

    def element(self, low, high, names=()):
        begin = self.random.randint(low, high)
        end = self.random.randint(begin, high)
        step = self.random.randint(1, max(2, (high - low) // 2))

        def word(n):
            if n - low < len(names) and self.chance(0.5):
                return self.pick(str, str.upper, str.title)(list(names)[n - low])
            return str(n)
        return self.pick(word(begin), word(begin), f"{word(begin)}-{word(end)}",
                         f"{begin}-{end}/{step}", f"{begin}/{step}", f"*/{step}")

    def field(self, star, low, high, names=(), more=None):
        if self.chance(star):
            return "*"
        return ",".join(more() if more and self.chance(0.4) else self.element(low, high, names)
                        for _ in range(self.pick(1, 1, 1, 2, 3)))

    def expression(self):
        which = self.random.randint
        fields = [
            self.field(0.1, 0, 59),
            # mostly hours in which clocks are set
            self.pick(self.field(0.2, 0, 23), self.field(0.2, 0, 4), f"{which(0, 3)}"),
            self.field(0.5, 1, 31, more=lambda: self.pick("L", f"{which(1, 31)}W")),
            self.field(0.8, 1, 12, MONTHS),
            self.field(0.5, 0, 7, WEEKDAYS, lambda: self.pick(
                f"{which(0, 7)}L", f"{which(0, 7)}#{which(1, 5)}", "friL", "MON#3"))]
        if self.chance(0.25):
            fields.insert(0, self.field(0.1, 0, 59))
        return " ".join(fields)

    def repeat(self):
        which = self.random.randint
        return self.pick(
            (0, 0, which(1, 90) * SECOND // 2), (0, 0, which(1, 3000) * SECOND),
            (0, 0, which(1, 300) * 60 * SECOND), (0, 0, which(1, 100) * HOUR),
            (0, which(1, 20), 0), (0, which(1, 20), 0), (which(1, 14), 0, 0), (which(1, 14), 0, 0),
            (which(1, 3), which(-20, 20), which(-30, 30) * 60 * SECOND),
            (0, which(1, 9), which(-23, 23) * HOUR // 2))

    def some_time(self, zone):
        """A moment before or in the year, preferably one that is odd."""
        year = self.year
        day = self.pick(date(year, 1, self.random.randint(1, 31)), date(year - 1, 12, 31),
                        date(year, 1, 31), date(year, 2, 29), date(year, 2, 28),
                        date(year, self.random.randint(1, 12), self.random.randint(1, 28)))
        local = datetime(day.year, day.month, day.day, self.pick(0, 1, 1, 2, 2, 3, 12, 23),
                         self.pick(0, 15, 30, 45, 59))
        return zone.instant(local)

    def limited(self, schedule):
        """The schedule with an end, if it has too many times, or at random."""
        zone = zone_of(schedule["zone"], self.year)

        def times():
            return list(itertools.islice(chain(schedule, self.year, self.end), LIMIT + 1))
        found = times()
        if len(found) > LIMIT:
            # where the clock is set, if it is
            middle = self.pick(*zone.changes)[0] if zone.changes else self.begin + 59 * DAY
            span = (found[-1] - found[0]) // 2
            schedule["dt"] = max(middle - span, self.begin - 10 * DAY)
            schedule.pop("moved", None)
            schedule.pop("anchor", None)
            found = times()
        if len(found) > LIMIT or len(found) > 1 and self.chance(0.3):
            most = min(len(found), LIMIT) - 1
            if self.chance(0.5):
                schedule["runs_left"] = self.random.randint(most // 2 + 1, most + 1)
            else:
                last = self.random.randint(most // 2, most)
                schedule["until"] = found[last] + self.pick(0, 0, 1, -1) * (last > 0)
        return schedule if found else None

    def named(self, number, schedule):
        schedule["key"] = f"s{number:03}"
        schedule["missed"] = self.pick(None, "one", "none", "all")
        if self.chance(0.15):
            schedule["hold"] = "not yet"
        return schedule

    def cron_schedule(self, cron, name):
        zone = zone_of(name, self.year)
        # "H" may become any value
        known = re.sub(r"\bH(\(\d+-\d+\))?", "2", cron)
        dt = self.begin - self.random.randint(0, 20 * DAY)
        # a value for a "H" may be early in the year
        if known == cron and self.chance(0.3):
            dt = self.some_time(zone)
        schedule = {"zone": name, "cron": known, "dt": dt}
        if known == cron and self.chance(0.1):
            schedule["moved"] = self.some_time(zone) + self.random.randint(0, DAY)
        schedule = self.limited(schedule)
        if schedule and known != cron:
            schedule.pop("until", None)
        return schedule and {**schedule, "cron": cron}

    def repeat_schedule(self, parts, name):
        zone = zone_of(name, self.year)
        schedule = {"zone": name, "parts": parts, "dt": self.some_time(zone),
                    "drift": self.chance(0.85)}
        if self.chance(0.4):
            schedule["anchor"] = zone.instant(datetime(*self.pick(
                (2024, 2, 29) if self.year > 2024 else (2020, 2, 29), (self.year - 1, 1, 31),
                (self.year - 1, 8, 31)), self.random.randint(0, 3), 30))
            if self.chance(0.7):
                schedule["dt"] = next(counted(
                    schedule["anchor"], parts, schedule["dt"], zone, self.end + 500 * DAY))
        if self.chance(0.2):
            schedule["moved"] = self.some_time(zone)
            if self.chance(0.5) and schedule["drift"]:
                schedule["moved"] = next(itertools.islice(
                    chain({**schedule, "moved": schedule["dt"]}, self.year, self.end + 9999 * DAY),
                    self.random.randint(1, 3), None))
        return self.limited(schedule)

    def schedules(self):
        made = []
        for line in CRONS:
            cron, name = line.split("|")
            if name in self.zones:
                made.append(self.cron_schedule(cron, name))
        for line in REPEATS:
            text, local, name = line.split("|")
            if name in self.zones and int(local[:4].replace("year", "0")) <= self.year:
                zone = zone_of(name, self.year)
                parts = parse_interval(text)
                anchor = zone.instant(datetime.fromisoformat(
                    local.replace("year", str(self.year))))
                dt = next(counted(anchor, parts, self.begin, zone, self.end))
                made.append({"zone": name, "parts": parts, "anchor": anchor, "dt": dt,
                             "drift": True})
        made = [schedule for schedule in made if schedule]
        while len(made) < 80:
            try:
                schedule = self.cron_schedule(self.expression(), self.pick(*self.zones))
            except ValueError:
                continue
            if schedule:
                made.append(schedule)
        while len(made) < 110:
            parts = self.repeat()
            if parts[0] * 28 * DAY + parts[1] * DAY + parts[2] > 26 * HOUR * bool(
                    parts[0] or parts[1]):
                schedule = self.repeat_schedule(parts, self.pick(*self.zones))
                if schedule:
                    made.append(schedule)
        return [self.named(n, schedule) for n, schedule in enumerate(made)]

    @staticmethod
    def open(schedule):
        """Is there a value that only the server knows?"""
        return re.search(r"\bH", schedule.get("cron", ""))

    def windows(self):
        made = [[self.begin, self.end], [moment(datetime(self.year, 2, 28, 12)),
                                         moment(datetime(self.year, 3, 1, 12))]]
        changes = {at for name in self.zones for at, *_ in zone_of(name, self.year).changes
                   if self.begin < at < self.end}
        for at in sorted(changes):
            made.append([at - self.pick(0, 1, 2) * HOUR, at + self.pick(0, 1, 2) * HOUR])
        return made

    def calls(self, schedules):
        """Calls of the functions that compute times without a row."""
        made = []
        for schedule in schedules:
            zone = zone_of(schedule["zone"], self.year)
            if self.open(schedule):
                continue
            after = self.pick(self.some_time(zone), *(
                at + self.random.randint(-3, 3) * HOUR // 2 for at, *_ in zone.changes))
            made.append({
                "zone": schedule["zone"], "after": after, "count": self.random.randint(1, 9),
                **{name: schedule[name] for name in ("cron", "parts", "drift") if name in schedule},
                "planned": schedule["dt"]})
        return made

    def failures(self):
        """Runs that fail or not, and after how many of them the chain is on hold."""
        made = []
        for hold_after in (0, 1, 2, 3):
            outcome = [self.chance(0.6) for _ in range(10)]
            held, streak = [], 0
            for number, failed in enumerate(outcome, 1):
                streak = streak + 1 if failed else 0
                if streak and streak == hold_after:
                    held.append(number)
                    streak = 0    # it is resumed
            # behind the last run none is left to hold
            made.append({"hold_after": hold_after, "failed": outcome,
                         "held": [number for number in held if number < len(outcome)]})
        return made

    def all(self):
        schedules = self.schedules()
        return {"year": self.year, "different": self.different, "schedules": schedules,
                "windows": self.windows(), "calls": self.calls(schedules),
                "failures": self.failures()}

    def past(self):
        """Schedules that really run some times: those around a change of the clock."""
        made = []
        for schedule in self.schedules():
            if not schedule.get("drift", True) or self.open(schedule):
                continue
            schedule["missed"] = "all"
            schedule.pop("hold", None)
            found = list(itertools.islice(chain(schedule, self.year, self.end), 10 * LIMIT))
            changes = zone_of(schedule["zone"], self.year).changes
            at = self.pick(*changes)[0] if changes else self.begin + 59 * DAY
            begin = bisect.bisect_left(found, at) - self.random.randint(1, 4)
            if 0 < begin < len(found) and "moved" not in schedule:
                if "parts" in schedule:
                    schedule.setdefault("anchor", schedule["dt"])
                schedule["dt"] = found[begin]
                schedule.pop("until", None)
            schedule["runs_left"] = self.random.randint(3, 8)
            schedule["runs_left"] = min(schedule["runs_left"], len(
                list(chain(schedule, self.year, self.end))))
            made.append(schedule)
        return made


def generate(seed, changes):
    """Schedules of the next leap year, and of the last one."""
    today = date.today()
    leap = calendar.isleap
    year = next(n for n in itertools.count(today.year)
                if leap(n) and date(n, 1, 1) - today > timedelta(60))
    last = next(n for n in itertools.count(today.year - 1, -1) if leap(n))
    return {**Generator(seed, changes, year).all(), "last": last,
            "past": Generator(seed, changes, last).past()}


def parse_interval(text):
    months = days = rest = 0
    for number, unit in re.findall(r"([-+]?\d+) (mon|year|day)", text):
        if unit == "day":
            days += int(number)
        else:
            months += int(number) * (12 if unit == "year" else 1)
    for hours, minutes, seconds in re.findall(r"([-+]?\d+):(\d+):(\d+)", text):
        rest += (int(hours) * 60 + int(minutes)) * 60 * SECOND + int(seconds) * SECOND
    return [months, days, rest]


# The answers -----------------------------------------------------------------------------------

def called(call, year, end):
    """pg_task_schedule, pg_task_next: their times up to one, and whether there are later ones."""
    zone = zone_of(call["zone"], year)
    after, parts = call["after"], call.get("parts")
    if not parts:
        following = Cron(call["cron"]).times_from(after + 1, zone, end)
    else:
        following = counted(after, parts, after + 1, zone, end)
    found = list(itertools.islice(following, call["count"]))
    answer = {"schedule": found, "next": found[0] if found else None}
    if parts:
        planned = call["planned"]
        answer["ended"] = ended = max(planned, after)
        if call["drift"]:
            answer["next"] = next(counted(planned, parts, ended + 1, zone, end), None)
        else:
            answer["next"] = add(ended, parts, 1, zone)
    return answer


def shown(schedule, year, at):
    local = zone_of(schedule["zone"], year).local(at).isoformat(timespec="microseconds")
    return f"{at}/{local}/{schedule['zone']}/{'t' if 'hold' in schedule else 'f'}"


def expect(asked):
    year = asked["year"]
    far = moment(datetime(year + 1, 2, 1))
    answer = {"first": {}, "windows": [], "calls": []}
    times = {}
    for schedule in asked["schedules"]:
        key = schedule["key"]
        # on hold only the run that waits is known
        times[key] = list(itertools.islice(chain(schedule, year, far),
                                           1 if "hold" in schedule else None))
        answer["first"][key] = times[key][0]
    for number, (since, until) in enumerate(asked["windows"]):
        window = {}
        for schedule in asked["schedules"]:
            key = schedule["key"]
            found = times[key][bisect.bisect_left(times[key], since):
                               bisect.bisect_right(times[key], until)]
            # the first window is large: the moments alone
            if found:
                window[key] = " ".join(shown(schedule, year, at) if number else str(at)
                                       for at in found)
        answer["windows"].append(window)
    last = asked["last"]
    answer["past"] = {
        schedule["key"]: " ".join(map(str, chain(schedule, last, moment(datetime(last + 1, 1, 1)))))
        for schedule in asked["past"]}
    answer["calls"] = [called(call, year, far) for call in asked["calls"]]
    return answer


def main():
    if sys.argv[1] == "zones":
        print("\n".join(ZONES))
    elif sys.argv[1] == "generate":
        json.dump(generate(int(sys.argv[2]), json.load(sys.stdin)), sys.stdout)
    else:
        json.dump(expect(json.load(sys.stdin)), sys.stdout)


main()
