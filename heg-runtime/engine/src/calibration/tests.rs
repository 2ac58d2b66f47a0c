//! Prompts that wait to be read again, and the likely tokens that are kept of them.

use heg_openvino::TensorType;
use proptest::prelude::*;

use super::*;
use heg_exec::mem::{ActivationRows, KvShape, MemoryHome, Widths};

/// Makes a prompt whose rows from `first` on are new.
fn kept(request: u64, flow: u64, (first, tokens): (u32, u32), bytes: usize) -> Kept {
    let widths = Widths {
        hidden: 1,
        query: 1,
        key: 1,
        vocab: 1,
        element: TensorType::F32,
        kv: TensorType::F32,
    };
    let shape = KvShape {
        layers: 1,
        width: 1,
        context_tokens: 1,
        padding_rows: 0,
        element: TensorType::F32,
    };
    Kept {
        request: RequestId(request),
        flow: FlowId(flow),
        prompt: PromptRows {
            rows: Arc::new(ActivationRows::new(1, widths, &MemoryHome::default()).unwrap()),
            first,
        },
        cache: KvCache::reserve(shape).unwrap(),
        tokens,
        bytes,
    }
}

fn likely(token: u32, rows: u32) -> Vec<Likely> {
    vec![Likely::new([(token, 1.0)]); rows as usize]
}

/// Runs slices until no prompt waits; returns their segments.
fn run(all: &mut Calibrations) -> Vec<(u64, u32, u32)> {
    let mut ran = Vec::new();
    while let Some(slice) = all.start(Lane::Cpu) {
        assert!(all.due().is_none());
        let Segment { position, tokens } = slice.segment;
        ran.push((slice.request.0, position, tokens));
        all.ended(slice.request, Some(likely(slice.request.0 as u32, tokens)));
    }
    ran
}

#[test]
fn a_prompt_is_read_in_slices_from_its_first_new_row_on() {
    let mut all = Calibrations::new(true);
    assert!(all.keep(kept(1, 7, (0, 70), 9)).is_none());
    assert_eq!(all.rows(), (0, 70));
    assert_eq!(run(&mut all), [(1, 0, 32), (1, 32, 32), (1, 64, 6)]);
    // The next call of the flow has the first 50 tokens in common, and 20 new ones behind 60.
    all.reserved(FlowId(7), 50);
    let known = all.keep(kept(2, 7, (60, 80), 9)).unwrap();
    assert_eq!(known[..], likely(1, 50)[..]);
    assert_eq!(run(&mut all), [(2, 60, 20)]);
    assert_eq!(all.rows(), (90, 0));
    all.reserved(FlowId(7), 80);
    let table = &all.tables[&FlowId(7)];
    let known: Vec<bool> = table.iter().map(Likely::is_known).collect();
    let expected: Vec<bool> = (0..80).map(|at| !(50..60).contains(&at)).collect();
    assert_eq!(known, expected);
    all.reserved(FlowId(7), 0);
    assert!(all.tables.is_empty());
}

#[test]
fn what_a_lane_left_is_read_later_and_what_failed_is_not() {
    let mut all = Calibrations::new(true);
    all.keep(kept(1, 1, (0, 40), 9));
    all.keep(kept(2, 2, (0, 5), 9));
    let slice = all.start(Lane::Cpu).unwrap();
    // A request needed the lane after eight rows.
    assert!(all.ended(slice.request, Some(likely(1, 8))).is_none());
    let slice = all.start(Lane::Cpu).unwrap();
    assert_eq!((slice.segment.position, slice.segment.tokens), (8, 32));
    assert!(all.ended(slice.request, None).is_none());
    let slice = all.start(Lane::Cpu).unwrap();
    // Its flow was ended meanwhile.
    all.forget(|flow| flow != FlowId(2));
    assert!(all.ended(slice.request, Some(likely(2, 5))).is_none());
    assert!(all.due().is_none() && all.tables.is_empty());
}

#[test]
fn what_was_read_of_a_prompt_is_kept_when_its_flow_goes_on() {
    let mut all = Calibrations::new(true);
    all.keep(kept(1, 1, (0, 40), 9));
    let slice = all.start(Lane::Cpu).unwrap();
    all.ended(slice.request, Some(likely(1, 32)));
    all.reserved(FlowId(1), 30);
    assert_eq!(all.rows(), (32, 0));
    let known = all.keep(kept(2, 1, (30, 40), 9)).unwrap();
    assert_eq!(known.len(), 30);
}

#[test]
fn nothing_waits_where_it_is_off() {
    assert!(!Calibrations::new(false).takes(1));
    assert!(!Calibrations::new(true).takes(BYTES_MAX + 1));
    assert!(Calibrations::new(true).takes(BYTES_MAX));
}

proptest! {
    #[test]
    fn memory_is_bounded(
        calls in prop::collection::vec((0..6_u64, 1..100_u32, 0..100_u32, 1..BYTES_MAX), 1..40),
        flows_kept in 0..6_u64,
    ) {
        let mut all = Calibrations::new(true);
        for (request, (flow, tokens, reused, bytes)) in (0..).zip(calls) {
            let reused = reused.min(tokens - 1);
            all.reserved(FlowId(flow), reused);
            all.keep(kept(request, flow, (reused, tokens), bytes));
            prop_assert!(all.bytes() <= BYTES_MAX);
            if let Some(slice) = all.start(Lane::Cpu) {
                prop_assert!(slice.segment.tokens > 0 && slice.segment.tokens <= SLICE_ROWS);
                all.ended(slice.request, Some(likely(1, slice.segment.tokens)));
            }
            all.forget(|flow| flow.0 < flows_kept);
            prop_assert!(all.tables.len() + all.pending.len() <= 2 * flows_kept as usize);
            prop_assert!(all.tables.values().all(|table| table.len() <= 100));
        }
    }
}
