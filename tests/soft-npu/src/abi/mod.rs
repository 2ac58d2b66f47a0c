//! Level Zero's C interface: result codes, chains of structures, and what callers name by pointers.
//!
//! Structures are those of Level Zero 1.17 ([`core`]) and of the NPU's extensions, graph 1.18 ([`npu`]), as far as the
//! plugin uses them; written from the headers, whose names they keep without `ze_` and `_t`.

pub(crate) mod core;
pub(crate) mod npu;

use std::ffi::{c_char, c_void};

/// `ze_result_t`.
pub(crate) type Code = u32;

/// A handle of any kind.
pub(crate) type Handle = *mut c_void;

/// Result of a function of the interface.
pub(crate) type Outcome = Result<(), Code>;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const NOT_READY: Code = 1;
pub(crate) const DEVICE_LOST: Code = 0x7000_0001;
pub(crate) const OUT_OF_DEVICE_MEMORY: Code = 0x7000_0003;
pub(crate) const NOT_AVAILABLE: Code = 0x7001_0001;
pub(crate) const UNINITIALIZED: Code = 0x7800_0001;
pub(crate) const UNSUPPORTED_VERSION: Code = 0x7800_0002;
pub(crate) const UNSUPPORTED_FEATURE: Code = 0x7800_0003;
pub(crate) const INVALID_ARGUMENT: Code = 0x7800_0004;
pub(crate) const INVALID_NULL_HANDLE: Code = 0x7800_0005;
pub(crate) const INVALID_NULL_POINTER: Code = 0x7800_0007;
pub(crate) const INVALID_SIZE: Code = 0x7800_0008;
pub(crate) const UNSUPPORTED_SIZE: Code = 0x7800_0009;
pub(crate) const UNSUPPORTED_ALIGNMENT: Code = 0x7800_000a;
pub(crate) const INVALID_SYNCHRONIZATION_OBJECT: Code = 0x7800_000b;
pub(crate) const INVALID_NATIVE_BINARY: Code = 0x7800_000f;
pub(crate) const UNKNOWN: Code = 0x7fff_fffe;

/// A version as the interface has it.
pub(crate) const fn version(major: u16, minor: u16) -> u32 {
    ((major as u32) << 16) | minor as u32
}

/// The code that a function of the interface answers.
pub(crate) fn answer(call: impl FnOnce() -> Outcome) -> Code {
    match call() {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// The first two fields of every structure in a chain.
#[repr(C)]
pub(crate) struct Head {
    pub(crate) stype: u32,
    pub(crate) next: *const Head,
}

/// Copies text into a field, cut to fit and zero-terminated.
pub(crate) fn put(field: &mut [c_char], text: &str) {
    let Some(room) = field.len().checked_sub(1) else {
        return;
    };
    let length = text.len().min(room);
    for (to, from) in field.iter_mut().zip(text.bytes().take(length)) {
        *to = from.cast_signed();
    }
    if let Some(end) = field.get_mut(length) {
        *end = 0;
    }
}

/// The place that a caller wants a result at.
///
/// # Errors
///
/// [`INVALID_NULL_POINTER`] if it is null.
///
/// # Safety
///
/// A pointer that is not null is aligned, and of a `T` that nobody else uses for `'a`.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T) -> Result<&'a mut T, Code> {
    // SAFETY: the caller promises as much.
    unsafe { pointer.as_mut() }.ok_or(INVALID_NULL_POINTER)
}

/// A structure that a caller describes something with.
///
/// # Errors
///
/// [`INVALID_NULL_POINTER`] if it is null.
///
/// # Safety
///
/// A pointer that is not null is aligned, and of a `T` that nobody writes for `'a`.
pub(crate) unsafe fn given<'a, T>(pointer: *const T) -> Result<&'a T, Code> {
    // SAFETY: the caller promises as much.
    unsafe { pointer.as_ref() }.ok_or(INVALID_NULL_POINTER)
}

/// A list of handles.
///
/// # Errors
///
/// [`INVALID_NULL_POINTER`] if there are some and the list is null.
///
/// # Safety
///
/// A list that is not null has `count` handles.
pub(crate) unsafe fn handles(count: u32, list: *const Handle) -> Result<Vec<Handle>, Code> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if list.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the caller promises `count` handles.
    Ok(unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec())
}

/// Tells a caller how many items there are, and gives as many as it has room for.
///
/// # Errors
///
/// [`INVALID_NULL_POINTER`] if `count` is null.
///
/// # Safety
///
/// `count` is as for [`place`], and `out`, if not null, has room for as many items as it says.
pub(crate) unsafe fn list<T>(
    count: *mut u32,
    out: *mut T,
    items: usize,
    mut fill: impl FnMut(usize, &mut T),
) -> Outcome {
    // SAFETY: the caller promises as much.
    let count = unsafe { place(count) }?;
    if !out.is_null() {
        for index in 0..items.min(*count as usize) {
            // SAFETY: there is room for as many items as `count` says, and `index` is below that.
            fill(index, unsafe { &mut *out.add(index) });
        }
    }
    *count = u32::try_from(items).unwrap_or(u32::MAX);
    Ok(())
}

/// The structures behind the first in a chain.
///
/// # Safety
///
/// `head` is null or the first of a valid chain, which nobody writes for `'a`.
pub(crate) unsafe fn chain<'a>(head: *const Head) -> impl Iterator<Item = &'a Head> {
    // SAFETY: the caller promises that links are null or of structures that begin with a head.
    let link = |at: *const Head| unsafe { at.as_ref() };
    let first = link(head).and_then(|first| link(first.next));
    std::iter::successors(first, move |at| link(at.next))
}

/// A structure of a chain as the type that its head says.
///
/// # Safety
///
/// The caller has looked at [`Head::stype`], and `T` is the structure of that type, with the head first.
pub(crate) const unsafe fn as_structure<T>(head: &Head) -> &T {
    // SAFETY: the caller knows the type, whose first field is the head.
    unsafe { &*std::ptr::from_ref(head).cast::<T>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_their_field() {
        let mut field = [1; 4];
        put(&mut field, "abcdef");
        assert_eq!(field.map(i8::cast_unsigned), *b"abc\0");
        put(&mut field, "x");
        assert_eq!(field.map(i8::cast_unsigned), *b"x\0c\0");
        put(&mut [], "x");
    }

    #[test]
    fn a_chain_is_walked_behind_its_first() {
        let last = Head {
            stype: 3,
            next: std::ptr::null(),
        };
        let middle = Head {
            stype: 2,
            next: &raw const last,
        };
        let first = Head {
            stype: 1,
            next: &raw const middle,
        };
        // SAFETY: the three are alive, and linked as a chain.
        let found: Vec<u32> = unsafe { chain(&raw const first) }
            .map(|head| head.stype)
            .collect();
        assert_eq!(found, [2, 3]);
        // SAFETY: null is no chain.
        assert_eq!(unsafe { chain(std::ptr::null()) }.count(), 0);
    }
}
