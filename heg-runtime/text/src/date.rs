//! The date that a chat template may write into a prompt.
//!
//! Templates ask for it with `strftime_now("%d %b %Y")`. The moment comes from the caller, as seconds; this
//! module only knows the calendar. Names are English, as in the C locale that `transformers` runs in.

use std::fmt::Write;

/// A moment in the proleptic Gregorian calendar, without a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    /// Days since 1970-01-01.
    days: i64,
    second_of_day: i64,
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
}

impl DateTime {
    /// The moment this many seconds after 1970-01-01 00:00:00. For local time the caller adds the offset of
    /// its zone.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        let days = seconds.div_euclid(SECONDS_PER_DAY);
        let second_of_day = seconds.rem_euclid(SECONDS_PER_DAY);
        let (year, month, day) = civil_from_days(days);
        Self {
            days,
            second_of_day,
            year,
            month,
            day,
        }
    }

    /// Writes the moment by the codes of `strftime`. Codes outside the list below stay as they are.
    ///
    /// `%a %A %b %B %d %e %F %H %I %j %m %M %p %S %T %y %Y %%`, and `-` behind the percent sign for no padding.
    pub fn format(&self, pattern: &str) -> String {
        let mut out = String::with_capacity(pattern.len() + 16);
        let mut rest = pattern;
        while let Some((before, after)) = rest.split_once('%') {
            out.push_str(before);
            let (code, padded) = match after.strip_prefix('-') {
                Some(code) => (code, false),
                None => (after, true),
            };
            let mut letters = code.chars();
            match letters.next().and_then(|letter| self.field(letter, padded)) {
                Some(text) => {
                    out.push_str(&text);
                    rest = letters.as_str();
                }
                None => {
                    out.push('%');
                    rest = after;
                }
            }
        }
        out.push_str(rest);
        out
    }

    fn field(&self, code: char, padded: bool) -> Option<String> {
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let hour_of_twelve = (hour + 11) % 12 + 1;
        let (number, width) = match code {
            'd' => (self.day, 2),
            'm' => (self.month, 2),
            'y' => (self.year.rem_euclid(100), 2),
            'Y' => (self.year, 1),
            'H' => (hour, 2),
            'I' => (hour_of_twelve, 2),
            'M' => (minute, 2),
            'S' => (self.second_of_day % 60, 2),
            'j' => (self.days - days_from_civil(self.year, 1, 1) + 1, 3),
            _ => return self.words(code, padded),
        };
        let mut text = String::new();
        let width = if padded { width } else { 1 };
        write!(text, "{number:0width$}").ok()?;
        Some(text)
    }

    fn words(&self, code: char, padded: bool) -> Option<String> {
        let weekday = WEEKDAYS.get((self.days + 4).rem_euclid(7) as usize)?;
        let month = MONTHS.get(self.month as usize - 1)?;
        Some(match code {
            'a' => weekday[..3].to_owned(),
            'A' => (*weekday).to_owned(),
            'b' => month[..3].to_owned(),
            'B' => (*month).to_owned(),
            'e' if padded => format!("{:2}", self.day),
            'e' => self.day.to_string(),
            'F' => self.format("%Y-%m-%d"),
            'T' => self.format("%H:%M:%S"),
            'p' => if self.second_of_day < SECONDS_PER_DAY / 2 {
                "AM"
            } else {
                "PM"
            }
            .to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// Year, month and day of a day number. H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + DAYS_TO_1970;
    let era = shifted.div_euclid(DAYS_PER_ERA);
    let day_of_era = shifted.rem_euclid(DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Day number of a date; the inverse of [`civil_from_days`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * DAYS_PER_ERA + day_of_era - DAYS_TO_1970
}

/// No leap seconds in Unix time (POSIX).
const SECONDS_PER_DAY: i64 = 86_400;

/// Days in 400 years of the Gregorian calendar.
const DAYS_PER_ERA: i64 = 146_097;

/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: i64, pattern: &str, expect: &str) {
        assert_eq!(DateTime::from_unix_seconds(seconds).format(pattern), expect);
    }

    #[test]
    fn writes_dates_as_strftime() {
        check(0, "%d %b %Y", "01 Jan 1970");
        check(1_721_952_000, "%d %b %Y", "26 Jul 2024");
        check(
            1_709_210_096,
            "%A, %B %-d, %Y %H:%M:%S %j",
            "Thursday, February 29, 2024 12:34:56 060",
        );
        check(
            1_709_210_096,
            "%F %T %I %p %y %a %e %-m",
            "2024-02-29 12:34:56 12 PM 24 Thu 29 2",
        );
        check(-1, "%F %T %e", "1969-12-31 23:59:59 31");
        check(0, "100%% %q %-q % %", "100% %q %-q % %");
        check(0, "%-e%e", "1 1");
    }

    #[test]
    fn days_and_dates_agree() {
        for days in (-1_000_000..1_000_000).step_by(97) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
        for seconds in [i64::MIN, i64::MAX] {
            assert!(
                !DateTime::from_unix_seconds(seconds)
                    .format("%F %j %A")
                    .is_empty()
            );
        }
    }
}
