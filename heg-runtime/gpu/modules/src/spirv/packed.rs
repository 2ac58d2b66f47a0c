//! Words as the bytes of a section: seven bits of a word in each byte, the lowest first; all bytes of a word but its last
//! have their eighth bit set. Most words of a module are small numbers, so that is half of their bytes.

use super::SpirvError;

/// Bytes of the longest word.
const BYTES_MAX: u32 = 5;

/// The bytes of some words. Equal words give equal bytes.
pub fn pack(words: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * words.len());
    for word in words {
        let mut rest = *word;
        while rest > 0x7f {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    bytes
}

/// The bytes that [`pack`] gives for the words of a file, which are little-endian; `N` is their [`packed_length`]. Modules
/// that are built in are packed when the crate is compiled.
pub(crate) const fn packed_file<const N: usize>(file: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    let (mut words, _) = file.as_chunks::<4>();
    while let [word, others @ ..] = words {
        let mut rest = u32::from_le_bytes(*word);
        while rest > 0x7f {
            bytes[at] = rest as u8 | 0x80;
            at += 1;
            rest >>= 7;
        }
        bytes[at] = rest as u8;
        at += 1;
        words = others;
    }
    bytes
}

/// Number of bytes that [`packed_file`] gives.
pub(crate) const fn packed_length(file: &[u8]) -> usize {
    let mut length = 0;
    let (mut words, _) = file.as_chunks::<4>();
    while let [word, others @ ..] = words {
        let bits = u32::BITS - (u32::from_le_bytes(*word) | 1).leading_zeros();
        length += bits.div_ceil(7) as usize;
        words = others;
    }
    length
}

/// The words of some bytes that [`pack`] gave: at most as many as there are bytes.
///
/// # Errors
///
/// [`SpirvError::Packed`] for bytes that it gives for no words.
pub fn unpack(bytes: &[u8]) -> Result<Vec<u32>, SpirvError> {
    let mut words = Vec::with_capacity(bytes.len() / 2);
    let (mut word, mut index) = (0_u32, 0);
    for (at, byte) in bytes.iter().enumerate() {
        let bits = u32::from(byte & 0x7f);
        let is_last = byte & 0x80 == 0;
        let is_longer = is_last && bits == 0 && index > 0;
        let is_larger = index + 1 == BYTES_MAX && (bits > 0xf || !is_last);
        if is_longer || is_larger {
            return Err(SpirvError::Packed { at });
        }
        word |= bits << (7 * index);
        index += 1;
        if is_last {
            words.push(word);
            (word, index) = (0, 0);
        }
    }
    match index {
        0 => Ok(words),
        _ => Err(SpirvError::Packed { at: bytes.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_from_their_bytes() {
        let words = [0, 1, 127, 128, 16_383, 16_384, 1 << 28, u32::MAX];
        let bytes = pack(&words);
        assert_eq!(bytes.len(), 1 + 1 + 1 + 2 + 2 + 3 + 5 + 5);
        assert_eq!(unpack(&bytes), Ok(words.to_vec()));
        assert_eq!(unpack(&[]), Ok(Vec::new()));
    }

    #[test]
    fn words_have_one_form() {
        let refused = |bytes: &[u8]| unpack(bytes).unwrap_err();
        // A word that does not end, one with a zero too many, and ones of more than 32 bits.
        assert_eq!(refused(&[1, 0x80]), SpirvError::Packed { at: 2 });
        assert_eq!(refused(&[0x81, 0]), SpirvError::Packed { at: 1 });
        assert_eq!(
            refused(&[0xff, 0xff, 0xff, 0xff, 0x10]),
            SpirvError::Packed { at: 4 }
        );
        assert_eq!(
            refused(&[0xff, 0xff, 0xff, 0xff, 0x8f, 0]),
            SpirvError::Packed { at: 4 }
        );
    }
}
