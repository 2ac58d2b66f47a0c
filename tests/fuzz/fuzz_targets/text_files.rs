//! Small files and streams of text from others: request files, files of tokens, and the replies of servers that `heg
//! bench-serve` measures. The first byte chooses the kind.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use heg_server::Tokens;
use heg_workload::{ReplyEvent, ReplyReader, Workload};

/// A file of tokens, one for each process.
static TOKEN_FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("heg-fuzz-tokens-{}", std::process::id())));

pub(crate) fn run(input: &[u8]) {
    let [which, content @ ..] = input else {
        return;
    };
    match which % 3 {
        0 => request_file(content),
        1 => token_file(content),
        _ => reply(content),
    }
}

/// Checks that requests share no more with the one before them than their prompts do.
fn request_file(content: &[u8]) {
    let Ok(text) = std::str::from_utf8(content) else {
        return;
    };
    let Ok(workload) = Workload::parse("requests", text) else {
        return;
    };
    assert!(workload.requests.len() <= text.lines().count());
    for request in &workload.requests {
        assert!(request.prompt_tokens >= 1 && request.output_tokens >= 1);
        assert!(request.shared_tokens <= request.prompt_tokens);
    }
}

/// Checks that an accepted file has tokens, and that an error shows none of them.
fn token_file(content: &[u8]) {
    // Each token is compared with all others.
    let content = content.get(..4096).unwrap_or(content);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&*TOKEN_FILE).expect("a temporary file");
    file.write_all(content).expect("a temporary file");
    match Tokens::read(&TOKEN_FILE) {
        Ok(tokens) => assert!(!tokens.is_empty()),
        Err(error) => {
            // The file's path is no secret, also where the file has it as a word.
            let path = TOKEN_FILE.to_string_lossy();
            let said = error.to_string().replace(&*path, "the file");
            let secret = std::str::from_utf8(content).unwrap_or_default();
            let mut words = secret.split_whitespace().filter(|word| word.len() >= 24);
            assert!(!words.any(|word| said.contains(word)), "{said}");
        }
    }
}

/// Checks that the events of a stream do not depend on where its packets end.
fn reply(content: &[u8]) {
    let read = |packet_bytes: usize| -> Option<Vec<String>> {
        let mut reader = ReplyReader::default();
        let packets = content.chunks(packet_bytes.max(1));
        let events = packets.map(|packet| reader.feed(packet).ok());
        events.collect::<Option<Vec<_>>>().map(|all| all.concat())
    };
    let whole = read(content.len());
    assert_eq!(whole, read(7));
    for data in whole.unwrap_or_default() {
        let _ = ReplyEvent::of_openai(&data);
        let _ = ReplyEvent::of_llama_server(&data);
    }
}
