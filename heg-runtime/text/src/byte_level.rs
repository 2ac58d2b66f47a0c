//! The byte alphabet of byte-level BPE (GPT-2 and everything after it).
//!
//! A vocabulary file cannot hold arbitrary bytes, so each byte is written as one letter: printable Latin-1
//! stands for itself, the other 68 bytes for U+0100 upwards, in order. Text of a token that uses any
//! other letter (an added token such as `<|tool|> `) stands for its own UTF-8 bytes.

/// Appends the bytes that a token of a byte-level vocabulary stands for.
pub(super) fn push_token_bytes(token: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for letter in token.chars() {
        match byte_of(letter) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Returns the byte that a letter stands for, if the letter is in the alphabet.
fn byte_of(letter: char) -> Option<u8> {
    let byte = *BYTE_OF.get(letter as usize)?;
    u8::try_from(byte).ok()
}

const fn stands_for_itself(byte: usize) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte of each letter; `NO_BYTE` if the letter is not in the alphabet.
const BYTE_OF: [u16; LETTERS] = {
    let mut table = [NO_BYTE; LETTERS];
    let mut byte = 0;
    let mut moved = 0;
    while byte < 256 {
        if stands_for_itself(byte) {
            table[byte] = byte as u16;
        } else {
            table[256 + moved] = byte as u16;
            moved += 1;
        }
        byte += 1;
    }
    table
};

/// Number of letters: 256 byte values, and the 68 letters after them for the unprintable bytes.
const LETTERS: usize = 256 + 68;

/// Marks a letter that stands for no byte.
const NO_BYTE: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(token: &str, expect: &[u8]) {
        let mut bytes = vec![9];
        push_token_bytes(token, &mut bytes);
        assert_eq!(bytes[1..], *expect, "{token}");
    }

    #[test]
    fn letters_become_bytes() {
        check("Ġhi", b" hi");
        check("Ċ", b"\n");
        check("Ã©", "é".as_bytes());
        check("ÿ", &[0xff]);
        check("Ń", &[0xad]);
        check("", b"");
    }

    #[test]
    fn other_letters_are_taken_as_they_are() {
        check("<a b>", b"<a b>");
        check("日", "日".as_bytes());
    }

    #[test]
    fn every_byte_has_one_letter() {
        let mut seen: Vec<u16> = BYTE_OF
            .iter()
            .copied()
            .filter(|&byte| byte != NO_BYTE)
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..256).collect::<Vec<u16>>());
    }
}
