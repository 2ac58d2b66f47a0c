//! Whether `heg` is as small as it was. A dependency, or a type that another document is read into, adds tenths of a
//! megabyte that no other check sees.

use crate::fail::Fail;
use crate::workspace::note;
use anyhow::Result;

/// The length that `heg` may have, in bytes: the goal for releases. `artifacts/ship/SHIP.md` says what the bytes are. A feature that is
/// worth its bytes raises this in the commit that brings it.
const HEG_MAX: usize = 20_500_000;

/// Says how long `heg` is, and refuses a longer one than `HEG_MAX`.
pub(super) fn check(heg: &[u8]) -> Result<()> {
    within(heg.len(), HEG_MAX)
}

fn within(length: usize, limit: usize) -> Result<()> {
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    if length > limit {
        let what = format!(
            "expected a `heg` of at most {:.2} MB, found {:.2} MB ({} bytes too long)",
            megabytes(limit),
            megabytes(length),
            length - limit
        );
        let hint = "find the crate that grew, with `nm --size-sort` of a build that has symbols, or raise `HEG_MAX` in \
                    `xtask/src/dist/size.rs` and say in the commit what is worth it";
        return Err(Fail::check(what).hint(hint).into());
    }
    note(format!(
        "heg has {:.2} MB, of {:.2} that it may have",
        megabytes(length),
        megabytes(limit)
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_over_the_limit_is_refused() {
        within(20_500_000, 20_500_000).unwrap();
        let refused = within(20_510_001, 20_500_000).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "expected a `heg` of at most 20.50 MB, found 20.51 MB (10001 bytes too long)"
        );
    }
}
