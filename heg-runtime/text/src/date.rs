//! The date that a chat template may write into a prompt.
//!
//! Templates ask for it with `strftime_now("%d %b %Y")`. The moment comes from the caller, as seconds: this module
//! reads no clock and knows no time zone. Names are English, as in the C locale that `transformers` runs in.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::Offset;

/// A moment in the proleptic Gregorian calendar, without a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(into = "i64", from = "i64")]
pub struct DateTime(jiff::civil::DateTime);

impl DateTime {
    /// Returns the moment this many seconds after 1970-01-01 00:00:00, clamped to the years -9999 to 9999. For
    /// local time the caller adds the offset of its zone.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        let (first, last) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let moment = Timestamp::from_second(seconds.clamp(first, last)).unwrap_or_default();
        Self(Offset::UTC.to_datetime(moment))
    }

    /// Writes the moment by the codes of `strftime`; `-` after the percent sign turns padding off. Unknown codes,
    /// and those of time zones, stay as they are.
    pub fn format(&self, pattern: &str) -> String {
        let lenient = Config::new().lenient(true);
        let text = BrokenDownTime::from(self.0).to_string_with_config(&lenient, pattern);
        // Formatting is lenient: it does not fail.
        text.unwrap_or_else(|_| pattern.to_owned())
    }
}

impl From<i64> for DateTime {
    /// Converts as [`from_unix_seconds`](Self::from_unix_seconds) does.
    fn from(seconds: i64) -> Self {
        Self::from_unix_seconds(seconds)
    }
}

impl From<DateTime> for i64 {
    /// Seconds since 1970-01-01 00:00:00.
    fn from(moment: DateTime) -> Self {
        let moment = Offset::UTC.to_timestamp(moment.0);
        moment.map_or(0, Timestamp::as_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: i64, pattern: &str, expect: &str) {
        assert_eq!(DateTime::from_unix_seconds(seconds).format(pattern), expect);
    }

    #[test]
    fn a_moment_is_its_seconds() {
        for seconds in [0, 1_721_952_000, -62_000_000_000] {
            assert_eq!(i64::from(DateTime::from(seconds)), seconds);
        }
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
        check(0, "100%% %i %-i % %Z %", "100% %i %-i % %Z %");
        check(0, "%-e%e", "1 1");
    }

    #[test]
    fn no_moment_is_too_far_away() {
        for seconds in [i64::MIN, i64::MAX] {
            assert!(
                !DateTime::from_unix_seconds(seconds)
                    .format("%F %j %A")
                    .is_empty()
            );
        }
    }
}
