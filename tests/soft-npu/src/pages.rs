//! Pages of the caller: whether the kernel would pin them, and which file they are of.

/// Size of a page on x86-64.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Whether the kernel would pin these pages, to be read, or to be written as well.
///
/// ivpu, `ivpu_gem_userptr.c`: `pin_user_pages_fast` with `FOLL_LONGTERM`, and with `FOLL_WRITE` unless the buffer is
/// read-only. Populating faults pages in as pinning does, and fails where a page may not be written.
pub(crate) fn can_be_pinned(start: usize, bytes: usize, is_written: bool) -> bool {
    let advice = match is_written {
        true => libc::MADV_POPULATE_WRITE,
        false => libc::MADV_POPULATE_READ,
    };
    let address = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: populating changes no content, and an address that is not mapped is an error.
    unsafe { libc::madvise(address, bytes, advice) == 0 }
}

/// Name of the file that an address is mapped from; `anonymous`, or `nothing` where nothing is mapped.
pub(crate) fn file_of(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    name_at(&maps, address)
}

/// The file at an address in a table as `/proc/self/maps` has it.
fn name_at(maps: &str, address: usize) -> String {
    let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
    for line in maps.lines() {
        let mut parts = line.split_whitespace();
        let range = parts.next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range else { continue };
        if (number(from)..number(to)).contains(&address) {
            let path = parts.nth(4).unwrap_or("anonymous");
            return path.rsplit('/').next().unwrap_or(path).to_owned();
        }
    }
    "nothing".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_a_file_or_of_none() {
        let maps =
            "1000-3000 r--s 00000000 fe:00 12  /tmp/a/tiny.heg\n4000-5000 rw-p 00000000 00:00 0 \n";
        assert_eq!(name_at(maps, 0x2fff), "tiny.heg");
        assert_eq!(name_at(maps, 0x4000), "anonymous");
        assert_eq!(name_at(maps, 0x3000), "nothing");
    }

    #[test]
    fn pages_that_are_only_read_cannot_be_pinned_for_writing() {
        // Code of this test: mapped, and not writable.
        let code = can_be_pinned as fn(usize, usize, bool) -> bool as usize;
        let page = code - code % PAGE_BYTES;
        assert!(can_be_pinned(page, PAGE_BYTES, false));
        assert!(!can_be_pinned(page, PAGE_BYTES, true));
        assert!(!can_be_pinned(page + 8, PAGE_BYTES, false));
    }
}
