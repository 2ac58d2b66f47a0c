//! Reads arbitrary bytes as a blob for its ports, as the software NPU's driver does.
//!
//! The input is tried as it is, as the section with the ports in a sound file, and as changes of a real section: pairs of
//! an offset and a number, of which mutations seldom make sense of 30 kB of tables by themselves.

pub(crate) fn run(input: &[u8]) {
    read(input);
    read(&file(input));
    let mut section = section(BLOB).to_vec();
    for change in input.as_chunks::<10>().0 {
        let [first, second, number @ ..] = *change;
        let at = usize::from(u16::from_le_bytes([first, second]));
        if let Some(field) = section.get_mut(at..at + number.len()) {
            field.copy_from_slice(&number);
        }
    }
    read(&file(&section));
}

fn read(blob: &[u8]) {
    let Ok(ports) = ze_loader::port_bytes(blob) else {
        return;
    };
    // Inputs and outputs may be the same table; a port takes a name and a shape at least.
    assert!(ports.len() <= blob.len() / 128, "{}", ports.len());
}

/// A 64-bit ELF file with one section, of the type that ports are in.
fn file(section: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 128];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[40..48].copy_from_slice(&64_u64.to_le_bytes());
    file[60..62].copy_from_slice(&1_u16.to_le_bytes());
    file[68..72].copy_from_slice(&PORTS.to_le_bytes());
    file[88..96].copy_from_slice(&128_u64.to_le_bytes());
    file[96..104].copy_from_slice(&(section.len() as u64).to_le_bytes());
    file.extend_from_slice(section);
    file
}

/// The section of a real blob.
fn section(blob: &[u8]) -> &[u8] {
    let number = |at: usize| {
        let bytes = blob[at..].first_chunk().expect("the blob is whole");
        u64::from_le_bytes(*bytes) as usize
    };
    let header = (number(40)..)
        .step_by(64)
        .find(|at| number(*at) >> 32 == PORTS as usize);
    let header = header.expect("the blob has ports");
    &blob[number(header + 24)..][..number(header + 32)]
}

const PORTS: u32 = 0x8aaa_aaaa;
const BLOB: &[u8] = include_bytes!("../../../profiler/testdata/matmul-3720.blob");
