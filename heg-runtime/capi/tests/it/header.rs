//! `include/heg.h` is made of `src/interface.rs`: each function's comment and signature, in C's words.
//!
//! `HEG_BLESS=1 cargo test -p heg-capi` writes it.

use std::fmt::Write;
use std::path::Path;

const INTERFACE: &str = include_str!("../../src/interface.rs");
const PREAMBLE: &str = include_str!("preamble.h");
const PATH: &str = "include/heg.h";

/// A function of the interface.
struct Function {
    comment: Vec<&'static str>,
    name: &'static str,
    arguments: Vec<(&'static str, &'static str)>,
    result: &'static str,
}

/// Names of the functions.
pub(crate) fn functions() -> Vec<String> {
    let functions = parsed();
    functions.iter().map(|it| it.name.to_owned()).collect()
}

fn parsed() -> Vec<Function> {
    let pieces = INTERFACE
        .split("#[unsafe(no_mangle)]\n")
        .collect::<Vec<_>>();
    let mut functions = Vec::new();
    for pair in pieces.windows(2) {
        let mut comment: Vec<&str> = pair[0]
            .lines()
            .rev()
            .map_while(|line| line.strip_prefix("/// "))
            .collect();
        comment.reverse();
        let (_, rest) = pair[1].split_once(" fn ").unwrap();
        let (name, rest) = rest.split_once('(').unwrap();
        // No type of an argument has a closing parenthesis.
        let (arguments, rest) = rest.split_once(')').unwrap();
        let (result, _) = rest.split_once('{').unwrap();
        let arguments = arguments
            .split(',')
            .map(str::trim)
            .filter(|it| !it.is_empty());
        functions.push(Function {
            comment,
            name,
            arguments: arguments.map(|it| it.split_once(": ").unwrap()).collect(),
            result: result.trim().strip_prefix("-> ").map_or("()", str::trim),
        });
    }
    functions
}

/// A type in C, to be followed by a name.
fn c_type(rust: &str) -> String {
    if let Some(to) = rust.strip_prefix("*mut ") {
        return pointer(&c_type(to));
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        // What is constant is what the pointer points to, which is behind the `*` where that is a pointer itself.
        return pointer(&format!("const {}", c_type(to)));
    }
    let known = [
        ("()", "void "),
        ("c_void", "void "),
        ("c_char", "char "),
        ("i32", "int32_t "),
        ("i64", "int64_t "),
        ("u32", "uint32_t "),
        ("u64", "uint64_t "),
        ("usize", "size_t "),
        ("EngineHandle", "heg_engine "),
        ("AnswerHandle", "heg_answer "),
        ("ErrorHandle", "heg_error "),
        ("Option<ListenerFunction>", "heg_listener "),
    ];
    let found = known.iter().find(|(name, _)| *name == rust);
    found
        .unwrap_or_else(|| panic!("no type of C is known for `{rust}`"))
        .1
        .to_owned()
}

fn pointer(to: &str) -> String {
    format!("{to}*")
}

fn header() -> String {
    let mut text = PREAMBLE.to_owned();
    for function in parsed() {
        text.push_str("\n/*");
        for line in &function.comment {
            let indent = if text.ends_with("/*") { " " } else { "\n   " };
            write!(text, "{indent}{line}").unwrap();
        }
        let arguments = function.arguments.iter();
        let arguments: Vec<String> = arguments
            .map(|(name, rust)| format!("{}{name}", c_type(rust)))
            .collect();
        let arguments = match arguments.is_empty() {
            true => "void".to_owned(),
            false => arguments.join(", "),
        };
        let (result, name) = (c_type(function.result), function.name);
        writeln!(text, " */\nHEG_API {result}{name}({arguments});").unwrap();
    }
    text.push_str("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
    text
}

#[test]
fn the_header_says_what_the_functions_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PATH);
    let header = header();
    if std::env::var_os("HEG_BLESS").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(committed, header, "run: HEG_BLESS=1 cargo test -p heg-capi");
}
