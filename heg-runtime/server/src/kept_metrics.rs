//! Figures of prefixes that are kept for later processes, and of those that come with the bundle.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use heg_runtime::engine::{BakedStatus, KeptStatus};

/// Registers what became of prefixes that are kept for later processes.
pub(super) fn register(registry: &mut Registry, kept: &KeptStatus) {
    let prompts = Family::<[Label; 1], Counter>::default();
    for (outcome, count) in [
        ("found", kept.found),
        ("absent", kept.absent),
        ("gone", kept.gone),
        ("damaged", kept.damaged),
        ("unread", kept.unread),
    ] {
        prompts.get_or_create(&[("outcome", outcome)]).inc_by(count);
    }
    let help = "Prompts that were looked for in kept state, and prefixes that could not be used";
    registry.register("kept_prompts", help, prompts);
    for (name, help, count) in [
        (
            "kept_tokens",
            "Tokens read from kept state",
            kept.read_tokens,
        ),
        (
            "kept_pages_written",
            "Pages written to kept state",
            kept.written_pages,
        ),
        (
            "kept_pages_given_up",
            "Pages given up for others",
            kept.given_up_pages,
        ),
        (
            "kept_prompts_unwritten",
            "Prompts that could not be kept",
            kept.unwritten,
        ),
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
    let written = Counter::<u64>::default();
    written.inc_by(kept.written_bytes);
    let help = "Written to kept state";
    registry.register_with_unit("kept_written", help, Unit::Bytes, written);
    let read = Counter::<f64, AtomicU64>::default();
    read.inc_by(kept.read_us as f64 / 1e6);
    let help = "Time spent in reading kept state";
    registry.register_with_unit("kept_read", help, Unit::Seconds, read);
}

/// Registers what became of the states of the bundle.
pub(super) fn register_baked(registry: &mut Registry, baked: &BakedStatus) {
    let prompts = Family::<[Label; 1], Counter>::default();
    for (outcome, count) in [("found", baked.found), ("damaged", baked.damaged)] {
        prompts.get_or_create(&[("outcome", outcome)]).inc_by(count);
    }
    let help = "Prompts that began with a state of the bundle, and reads that met a damaged page";
    registry.register("baked_prompts", help, prompts);
    let tokens = Family::<[(&'static str, String); 1], Counter>::default();
    for (state, count) in &baked.read_tokens {
        let label = [("state", state.clone())];
        tokens.get_or_create(&label).inc_by(*count);
    }
    let help = "Tokens read from states of the bundle";
    registry.register("baked_tokens", help, tokens);
    let read = Counter::<f64, AtomicU64>::default();
    read.inc_by(baked.read_us as f64 / 1e6);
    let help = "Time spent in reading states of the bundle";
    registry.register_with_unit("baked_read", help, Unit::Seconds, read);
}

type Label = (&'static str, &'static str);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use heg_runtime::engine::Status;

    #[test]
    fn what_was_kept_and_found_is_counted() {
        let status = Status {
            kept: Some(KeptStatus {
                found: 3,
                absent: 40,
                damaged: 1,
                read_tokens: 4096,
                read_us: 31_000,
                written_pages: 64,
                written_bytes: 134_479_872,
                unwritten: 2,
                ..KeptStatus::default()
            }),
            ..Status::default()
        };
        let text = Metrics::default().text(&status).unwrap();
        let kept = text.lines().filter(|line| line.starts_with("heg_kept"));
        let mut lines: Vec<&str> = kept.collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        heg_kept_pages_given_up_total 0
        heg_kept_pages_written_total 64
        heg_kept_prompts_total{outcome="absent"} 40
        heg_kept_prompts_total{outcome="damaged"} 1
        heg_kept_prompts_total{outcome="found"} 3
        heg_kept_prompts_total{outcome="gone"} 0
        heg_kept_prompts_total{outcome="unread"} 0
        heg_kept_prompts_unwritten_total 2
        heg_kept_read_seconds_total 0.031
        heg_kept_tokens_total 4096
        heg_kept_written_bytes_total 134479872
        "#);
    }

    #[test]
    fn what_came_from_the_bundle_is_counted_by_state() {
        let status = Status {
            baked: Some(BakedStatus {
                found: 5,
                damaged: 1,
                read_tokens: vec![("mail".to_owned(), 1984), ("notes".to_owned(), 64)],
                read_us: 20_500,
                trouble: None,
            }),
            ..Status::default()
        };
        let text = Metrics::default().text(&status).unwrap();
        let baked = text.lines().filter(|line| line.starts_with("heg_baked"));
        let mut lines: Vec<&str> = baked.collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        heg_baked_prompts_total{outcome="damaged"} 1
        heg_baked_prompts_total{outcome="found"} 5
        heg_baked_read_seconds_total 0.0205
        heg_baked_tokens_total{state="mail"} 1984
        heg_baked_tokens_total{state="notes"} 64
        "#);
    }
}
