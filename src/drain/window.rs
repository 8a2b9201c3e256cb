//! Recurring time windows in which drains may start.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// A time of day, on some days of the week, in a time zone.
///
/// Clocks that change move it with them: an opening or closing in an hour that is skipped is as
/// much later, and of an hour that comes twice the first one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The days on which it opens, at least one.
    pub days: Vec<Weekday>,
    /// When it opens.
    pub from: Time,
    /// When it closes: on the next day unless this is later than the opening. Equal: it is open
    /// for the whole day.
    pub to: Time,
    /// Whose clock this is.
    pub zone: TimeZone,
}

impl Window {
    /// Days looked at for an opening: a week, the day before it, and as many again, since a zone
    /// that moves across the date line skips a day.
    const DAYS: i64 = 16;

    /// The first moment from now on at which it is open; `None` if it has no day.
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        let open = self.openings(now).filter(|(opens, closes)| opens < closes && now < *closes);
        open.map(|(opens, _)| opens.max(now)).min()
    }

    /// When it opens and closes on the days around now, and after.
    fn openings(&self, now: Timestamp) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        let today = now.to_zoned(self.zone.clone()).date();
        let days = (-1..Self::DAYS).filter_map(move |offset| day(today, offset));
        days.filter(|date| self.days.contains(&date.weekday())).filter_map(|date| {
            let last = if self.to > self.from { date } else { day(date, 1)? };
            Some((self.moment(date, self.from)?, self.moment(last, self.to)?))
        })
    }

    /// A time on the wall of this zone. `None` beyond the end of time.
    fn moment(&self, date: Date, time: Time) -> Option<Timestamp> {
        self.zone.to_ambiguous_timestamp(date.to_datetime(time)).compatible().ok()
    }
}

/// So many days later. `None` beyond the end of time.
fn day(date: Date, later: i64) -> Option<Date> {
    date.checked_add(Span::new().try_days(later).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: [Weekday; 5] =
        [Weekday::Monday, Weekday::Tuesday, Weekday::Wednesday, Weekday::Thursday, Weekday::Friday];

    fn window(days: &[Weekday], from: &str, to: &str, zone: &str) -> Window {
        Window {
            days: days.to_vec(),
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            zone: TimeZone::get(zone).unwrap(),
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// From these moments it opens next so: those that are the same are moments at which it is open.
    #[track_caller]
    fn assert_opens(window: &Window, cases: &[(&str, &str)]) {
        for (now, opens) in cases {
            assert_eq!(window.next_opening(time(now)), Some(time(opens)), "after {now}");
        }
    }

    #[test]
    fn a_window_is_open_from_its_first_moment_to_before_its_last() {
        // Friday 2 January 2026; winter time is an hour ahead of UTC.
        let window = window(&WORK, "09:00", "17:00", "Europe/Berlin");
        assert_opens(
            &window,
            &[
                ("2026-01-02T07:59:59Z", "2026-01-02T08:00:00Z"),
                ("2026-01-02T08:00:00Z", "2026-01-02T08:00:00Z"),
                ("2026-01-02T15:59:59Z", "2026-01-02T15:59:59Z"),
                ("2026-01-02T16:00:00Z", "2026-01-05T08:00:00Z"),
                ("2026-01-03T12:00:00Z", "2026-01-05T08:00:00Z"),
            ],
        );
    }

    #[test]
    fn a_window_past_midnight_belongs_to_the_day_on_which_it_opens() {
        let window = window(&[Weekday::Friday], "22:00", "06:00", "UTC");
        assert_opens(
            &window,
            &[
                ("2026-01-02T05:00:00Z", "2026-01-02T22:00:00Z"),
                ("2026-01-02T23:00:00Z", "2026-01-02T23:00:00Z"),
                ("2026-01-03T05:59:59Z", "2026-01-03T05:59:59Z"),
                ("2026-01-03T06:00:00Z", "2026-01-09T22:00:00Z"),
            ],
        );
    }

    #[test]
    fn equal_times_are_the_whole_day() {
        let window = window(&[Weekday::Sunday], "00:00", "00:00", "UTC");
        assert_opens(
            &window,
            &[
                ("2026-01-03T23:59:59Z", "2026-01-04T00:00:00Z"),
                ("2026-01-04T23:59:59Z", "2026-01-04T23:59:59Z"),
                ("2026-01-05T00:00:00Z", "2026-01-11T00:00:00Z"),
            ],
        );
    }

    #[test]
    fn a_window_follows_the_clocks_of_its_zone() {
        let window = window(&WORK, "09:00", "17:00", "America/New_York");
        // Summer time begins on Sunday 8 March 2026 and ends on Sunday 1 November 2026.
        assert_opens(
            &window,
            &[
                ("2026-03-06T13:59:59Z", "2026-03-06T14:00:00Z"),
                ("2026-03-09T12:59:59Z", "2026-03-09T13:00:00Z"),
                ("2026-10-30T12:59:59Z", "2026-10-30T13:00:00Z"),
                ("2026-11-02T13:00:00Z", "2026-11-02T14:00:00Z"),
            ],
        );
    }

    #[test]
    fn a_window_in_the_hour_that_is_skipped_is_an_hour_later() {
        // In Berlin 02:00 to 03:00 is skipped on 29 March 2026, at 01:00 UTC.
        let window = window(&[Weekday::Sunday], "02:10", "02:50", "Europe/Berlin");
        assert_opens(
            &window,
            &[
                ("2026-03-29T00:30:00Z", "2026-03-29T01:10:00Z"),
                ("2026-03-29T01:30:00Z", "2026-03-29T01:30:00Z"),
                ("2026-03-29T01:50:00Z", "2026-04-05T00:10:00Z"),
            ],
        );
    }

    #[test]
    fn of_an_hour_that_comes_twice_the_first_counts() {
        // In Berlin 02:00 to 03:00 comes twice on 25 October 2026, from 00:00 and 01:00 UTC.
        let window = window(&[Weekday::Sunday], "02:10", "02:50", "Europe/Berlin");
        assert_opens(
            &window,
            &[
                ("2026-10-25T00:00:00Z", "2026-10-25T00:10:00Z"),
                ("2026-10-25T00:30:00Z", "2026-10-25T00:30:00Z"),
                ("2026-10-25T01:30:00Z", "2026-11-01T01:10:00Z"),
            ],
        );
    }

    #[test]
    fn a_day_that_a_zone_skips_is_passed_over() {
        // Samoa had no Friday 30 December 2011.
        let window = window(&[Weekday::Friday], "10:00", "12:00", "Pacific/Apia");
        assert_eq!(
            window.next_opening(time("2011-12-31T12:00:00Z")),
            Some(time("2012-01-05T20:00:00Z"))
        );
    }

    #[test]
    fn a_window_without_days_never_opens() {
        let window = window(&[], "00:00", "00:00", "UTC");
        assert_eq!(window.next_opening(time("2026-01-02T00:00:00Z")), None);
        assert_eq!(window.next_opening(Timestamp::MAX), None);
    }
}
