//! The shared library exports the functions of the header, and nothing else.

use elf::ElfBytes;
use elf::abi::{SHN_UNDEF, STB_LOCAL};
use elf::endian::AnyEndian;

use crate::c_program::library;
use crate::header::functions;

/// Names of symbols that other programs can bind to.
fn exported() -> Vec<String> {
    let file = std::fs::read(library()).unwrap();
    let elf = ElfBytes::<AnyEndian>::minimal_parse(&file).unwrap();
    let (symbols, names) = elf.dynamic_symbol_table().unwrap().unwrap();
    let defined = symbols
        .iter()
        .filter(|symbol| symbol.st_shndx != SHN_UNDEF && symbol.st_bind() != STB_LOCAL);
    let mut exported: Vec<String> = defined
        .map(|symbol| names.get(symbol.st_name as usize).unwrap().to_owned())
        .collect();
    exported.sort();
    exported
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let mut declared = functions();
    declared.sort();
    assert!(declared.len() <= 25, "{} functions", declared.len());
    assert_eq!(exported(), declared);
    insta::assert_snapshot!(declared.join("\n"));
}
