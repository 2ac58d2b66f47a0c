//! The command line as people and scripts meet it: help, output, errors and exit statuses of `heg`, on the tiny bundle
//! of the format's tests. Tests that need a model that runs are in `machine.rs`, and in the workspace's `tests/`.

use std::path::Path;
use std::process::Command;

use crate::command;
use crate::tiny::TINY;

/// Runs `heg`; returns its output for a person.
fn heg(arguments: &[&str]) -> String {
    command::heg(Path::new("."), arguments)
}

#[test]
fn help() {
    insta::assert_snapshot!("help", heg(&["--help"]));
    for command in [
        "run",
        "bake",
        "chat",
        "embed",
        "rerank",
        "inspect",
        "verify",
        "bench",
        "score",
        "serve",
        "bench-serve",
        "explain",
        "state",
        "profile",
        #[cfg(feature = "ship")]
        "pull",
        #[cfg(feature = "ship")]
        "fit",
    ] {
        insta::assert_snapshot!(format!("help_{command}"), heg(&[command, "--help"]));
    }
}

/// `cargo xtask dist` packs them: a completion for each shell, and a page for each command that is no secret.
#[test]
fn pages_tell_of_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let said = heg(&["pages", folder.path().to_str().unwrap()]);
    assert_eq!(said, "exit status 0\n--- stdout\n--- stderr\n");
    let mut names = Vec::new();
    for part in ["completions", "man"] {
        for file in std::fs::read_dir(folder.path().join(part)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            names.push(format!("{part}/{name}"));
        }
    }
    names.sort();
    insta::assert_snapshot!(names.join("\n"));
    let run = std::fs::read_to_string(folder.path().join("man/heg-run.1")).unwrap();
    assert!(run.contains("speculate"));
    let bash = std::fs::read_to_string(folder.path().join("completions/heg.bash")).unwrap();
    assert!(
        !bash.contains("text-worker"),
        "hidden commands are not completed"
    );
}

#[test]
fn inspect() {
    insta::assert_snapshot!("inspect", heg(&["inspect", TINY]));
}

#[test]
fn inspect_json_is_the_manifest() {
    let text = heg(&["inspect", TINY, "--json"]);
    let json = text.split("--- stdout\n").nth(1).unwrap();
    let json = json.split("--- stderr\n").next().unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    insta::assert_snapshot!(
        "inspect_json_keys",
        keys.iter()
            .map(|key| format!("{key}\n"))
            .collect::<String>()
    );
    let variants = &json["kernels"][0]["variants"];
    assert!(variants[0]["program"].is_string());
    assert!(variants[1].get("program").is_none());
}

#[test]
fn bench_serve_says_what_it_cannot_replay() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("wrong.jsonl"), "\n{\"at_ms\": 0}\n").unwrap();
    let wrong: [&[&str]; 4] = [
        &["--url", "https://localhost"],
        &["--workloads", "absent"],
        &["--trace", "wrong.jsonl"],
        &["--minutes", "0"],
    ];
    let all: String = wrong
        .iter()
        .map(|arguments| command::heg(folder.path(), &[&["bench-serve"], *arguments].concat()))
        .collect();
    insta::assert_snapshot!("mistakes_bench_serve", all);
}

/// The trace is a seed of the fuzz target, too: it has some of everything.
#[test]
fn explain_names_what_a_request_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let seed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fuzz/seeds/trace/run.json"
    );
    std::fs::copy(seed, folder.path().join("run.json")).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not a trace").unwrap();
    let cases: [&[&str]; 8] = [
        &["run.json"],
        &["run.json", "2"],
        &["run.json", "slowest", "--json"],
        &["run.json", "9"],
        &["run.json", "seven"],
        &["run.json", "--json"],
        &["notes.txt", "1"],
        &["missing.json", "1"],
    ];
    let all: String = cases
        .iter()
        .map(|arguments| command::heg(folder.path(), &[&["explain"], *arguments].concat()))
        .collect();
    insta::assert_snapshot!("explain", all);
}

/// The tiny bundle has a vocabulary of 16 tokens and a context of 32.
#[test]
fn score_says_which_line_it_cannot_score() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(TINY, folder.path().join("tiny.heg")).unwrap();
    let long = format!("{:?}", vec![1; 33]);
    for (name, text) in [
        ("empty.jsonl", ""),
        ("gap.jsonl", "[1, 2]\n\n[3, 4]\n"),
        ("words.jsonl", "[1, 2]\n[1, \"two\"]\n"),
        ("beyond.jsonl", "[1, 2]\n[1, 2, 16]\n"),
        ("short.jsonl", "[1, 2, 3]\n[1]\n"),
        ("long.jsonl", long.as_str()),
        ("good.jsonl", "[1, 2, 3]\n[1, 2, 3]\n"),
        ("one.txt", "1\n"),
        ("far.txt", "1\n3\n"),
        ("odd.txt", "1\n-2\n"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let wrong: [&[&str]; 13] = [
        &[],
        &["--ids", "absent.jsonl"],
        &["--text", "absent.txt"],
        &["--ids", "empty.jsonl"],
        &["--ids", "gap.jsonl"],
        &["--ids", "words.jsonl"],
        &["--ids", "beyond.jsonl"],
        &["--ids", "short.jsonl"],
        &["--ids", "long.jsonl"],
        &["--ids", "good.jsonl", "--from-file", "one.txt"],
        &["--ids", "good.jsonl", "--from-file", "far.txt"],
        &["--ids", "good.jsonl", "--from-file", "odd.txt"],
        &["--ids", "good.jsonl", "--against-soc", "host-cpu"],
    ];
    let all: String = wrong
        .iter()
        .map(|arguments| {
            command::heg(
                folder.path(),
                &[&["score", "tiny.heg"], *arguments].concat(),
            )
        })
        .collect();
    insta::assert_snapshot!("mistakes_score", all);
}

#[test]
fn verify() {
    insta::assert_snapshot!("verify", heg(&["verify", TINY]));
}

#[test]
fn a_damaged_bundle_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(TINY).unwrap();
    let last = bytes.len() - 4096;
    bytes[last] ^= 1;
    std::fs::write(folder.path().join("damaged.heg"), bytes).unwrap();
    insta::assert_snapshot!(
        "verify_damaged",
        command::heg(folder.path(), &["verify", "damaged.heg"])
    );
}

#[test]
fn mistakes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(TINY, folder.path().join("tiny.heg")).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not a bundle").unwrap();
    std::fs::write(
        folder.path().join("soc.ron"),
        "(name: \"x\", devices: [(class: Gpu)])",
    )
    .unwrap();
    let cases: [(&str, &[&str]); 8] = [
        ("no_prompt", &["run", "tiny.heg"]),
        ("no_file", &["run", "missing.heg", "--prompt", "x"]),
        ("no_bundle", &["inspect", "notes.txt"]),
        (
            "no_soc",
            &["run", "tiny.heg", "--prompt", "x", "--soc", "hostcpu"],
        ),
        (
            "bad_soc",
            &["run", "tiny.heg", "--prompt", "x", "--soc", "soc.ron"],
        ),
        (
            "bad_temperature",
            &["run", "tiny.heg", "--prompt", "x", "--temperature", "-1"],
        ),
        (
            "raw_messages",
            &["run", "tiny.heg", "--raw", "--messages", "m.json"],
        ),
        ("unknown_command", &["rnu"]),
    ];
    for (name, arguments) in cases {
        insta::assert_snapshot!(
            format!("mistake_{name}"),
            command::heg(folder.path(), arguments)
        );
    }
}

/// Capacity of a pipe on Linux before its writer has to wait, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const PIPE_BYTES: usize = 64 << 10;

/// Commands that decode for long restart themselves, as the same process.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn commands_that_stay_ask_for_large_pages() {
    // The process runs as long as it has an error to print that nobody reads.
    let (_unread, mut full) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut full, &[0; PIPE_BYTES]).unwrap();
    let mut heg = Command::new(env!("CARGO_BIN_EXE_heg"))
        .args(["bench", "no-such-bundle.heg"])
        .env_remove("GLIBC_TUNABLES")
        .stderr(full)
        .spawn()
        .unwrap();
    let environment = format!("/proc/{}/environ", heg.id());
    let asks = || {
        let variables = std::fs::read(&environment).unwrap();
        let mut variables = variables.split(|byte| *byte == 0);
        variables.any(|variable| variable == b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
    };
    let asked = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        asks()
    });
    heg.kill().unwrap();
    heg.wait().unwrap();
    assert!(asked);
}
