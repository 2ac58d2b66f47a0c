//! Prompts whose rows wait for a bubble, and the likely tokens that are kept of them.

use heg_openvino::TensorType;
use proptest::prelude::*;

use super::*;
use crate::row_ring::RowRing;
use heg_exec::mem::{KvShape, MemoryHome, Widths};
use heg_sched::PromptWindow;

/// Makes a prompt whose rows from `first` on are new.
fn kept(request: u64, flow: u64, (first, tokens): (u32, u32), bytes: usize) -> Kept {
    Kept {
        request: RequestId(request),
        flow: FlowId(flow),
        prompt: PromptRows {
            rows: rows(),
            first,
            ring: RowRing::new(PromptWindow::WHOLE, (tokens - first) as usize, 0),
        },
        cache: cache(),
        tokens,
        bytes,
    }
}

fn rows() -> Arc<ActivationRows> {
    let widths = Widths {
        hidden: 1,
        query: 1,
        key: 1,
        head: 1,
        element: TensorType::F32,
        kv: TensorType::F32,
    };
    Arc::new(ActivationRows::new(1, widths, &MemoryHome::default()).unwrap())
}

fn cache() -> KvCache {
    let shape = KvShape {
        layers: 1,
        width: 1,
        context_tokens: 1,
        padding_rows: 0,
        element: TensorType::F32,
    };
    KvCache::reserve(shape).unwrap()
}

fn likely(token: u32, rows: u32) -> Vec<Likely> {
    vec![Likely::new([(token, 1.0)]); rows as usize]
}

/// Starts a slice where no prompt is in progress.
fn start(all: &mut Calibrations) -> Option<Slice> {
    all.start(Lane::Cpu, rows(), |_| None)
}

/// Runs slices until no rows are ready; returns their segments.
fn run(all: &mut Calibrations) -> Vec<(u64, u32, u32)> {
    let mut ran = Vec::new();
    while let Some(slice) = all.start(Lane::Cpu, rows(), |_| Some(Arc::new(cache()))) {
        assert!(all.since().is_none());
        let Segment { position, tokens } = slice.segment;
        ran.push((slice.request.0, position, tokens));
        end(all, &slice, tokens);
        all.table(slice.request);
    }
    ran
}

/// Ends a slice with likely tokens for as many of its rows.
fn end(all: &mut Calibrations, slice: &Slice, rows: u32) -> bool {
    let likely = likely(slice.request.0 as u32, rows);
    all.ended((slice.request, slice.segment.position), Some(likely))
}

/// The part of a prompt that is in progress, and a segment of it.
fn through(all: &mut Calibrations, request: u64, (first, tokens): (u32, u32), segment: (u32, u32)) {
    let Kept { prompt, .. } = kept(request, request, (first, tokens), 9);
    let begun = Begun {
        request: RequestId(request),
        flow: FlowId(request),
        prompt,
        tokens,
    };
    let (position, tokens) = segment;
    all.is_through(begun, Segment { position, tokens });
}

#[test]
fn a_prompt_is_read_in_slices_from_its_first_new_row_on() {
    let mut all = Calibrations::new(true);
    all.keep(kept(1, 7, (0, 70), 9));
    assert!(all.table(RequestId(1)).is_none());
    assert_eq!((all.counts().rows, all.waiting()), (0, 70));
    assert_eq!(run(&mut all), [(1, 0, 32), (1, 32, 32), (1, 64, 6)]);
    // The next call of the flow has the first 50 tokens in common, and 20 new ones behind 60.
    all.reserved(FlowId(7), 50);
    all.keep(kept(2, 7, (60, 80), 9));
    let known = all.table(RequestId(2)).unwrap();
    assert_eq!(known[..50], likely(1, 50)[..]);
    assert_eq!(run(&mut all), [(2, 60, 20)]);
    assert_eq!((all.counts().rows, all.waiting()), (90, 0));
    all.reserved(FlowId(7), 80);
    let table = &all.tables[&FlowId(7)];
    let known: Vec<bool> = table.iter().map(Likely::is_known).collect();
    let expected: Vec<bool> = (0..80).map(|at| !(50..60).contains(&at)).collect();
    assert_eq!(known, expected);
    all.reserved(FlowId(7), 0);
    assert!(all.tables.is_empty());
}

/// Segments become ready in any order; rows are read behind the first that is missing no more, and what was found is there
/// before the first token.
#[test]
fn a_prompt_in_progress_is_read_as_far_as_it_is_through() {
    let mut all = Calibrations::new(true);
    through(&mut all, 1, (10, 110), (42, 32));
    assert!(all.since().is_none() && all.next().is_none());
    through(&mut all, 1, (10, 110), (10, 32));
    assert_eq!(run(&mut all), [(1, 10, 32), (1, 42, 32)]);
    let known = all.table(RequestId(1)).unwrap();
    assert!(known.len() == 74 && known[10].is_known() && !known[9].is_known());
    through(&mut all, 1, (10, 110), (74, 20));
    let slice = all
        .start(Lane::Cpu, rows(), |_| Some(Arc::new(cache())))
        .unwrap();
    // It gets its first token meanwhile, and goes on with a copy.
    all.keep(kept(1, 1, (10, 110), 9));
    assert!(end(&mut all, &slice, 20));
    assert_eq!(run(&mut all), [(1, 94, 16)]);
    let counts = all.counts();
    assert_eq!(
        (counts.rows, counts.early_rows, counts.dropped_rows),
        (100, 64, 0)
    );
    assert_eq!(all.tables[&FlowId(1)].len(), 110);
}

/// A prompt that starts over, or is cancelled, leaves what it has to its flow; a slice that ends later is not its.
#[test]
fn what_is_given_up_is_counted() {
    let mut all = Calibrations::new(true);
    through(&mut all, 1, (0, 100), (0, 64));
    let slice = all
        .start(Lane::Cpu, rows(), |_| Some(Arc::new(cache())))
        .unwrap();
    end(&mut all, &slice, 32);
    let late = all
        .start(Lane::Cpu, rows(), |_| Some(Arc::new(cache())))
        .unwrap();
    all.leave(RequestId(1));
    assert!(!end(&mut all, &late, 32));
    assert_eq!(all.counts().dropped_rows, 68);
    assert_eq!(all.tables[&FlowId(1)].len(), 32);
    // Without its cache a prompt in progress is given up, too.
    through(&mut all, 2, (0, 40), (0, 20));
    assert!(start(&mut all).is_none() && all.since().is_none());
    assert_eq!(all.counts().dropped_rows, 108);
}

#[test]
fn a_prompt_in_progress_goes_before_those_that_have_their_token() {
    let mut all = Calibrations::new(true);
    all.keep(kept(1, 1, (0, 40), 9));
    through(&mut all, 2, (0, 100), (0, 40));
    let ran = run(&mut all);
    assert_eq!(ran, [(2, 0, 32), (2, 32, 8), (1, 0, 32), (1, 32, 8)]);
}

#[test]
fn what_a_lane_left_is_read_later_and_what_failed_is_not() {
    let mut all = Calibrations::new(true);
    all.keep(kept(1, 1, (0, 40), 9));
    all.keep(kept(2, 2, (0, 5), 9));
    let slice = start(&mut all).unwrap();
    // A request needed the lane after eight rows.
    assert!(end(&mut all, &slice, 8));
    let slice = start(&mut all).unwrap();
    assert_eq!((slice.segment.position, slice.segment.tokens), (8, 32));
    assert!(!all.ended((slice.request, 8), None));
    let slice = start(&mut all).unwrap();
    // Its flow was ended meanwhile.
    all.forget(|flow| flow != FlowId(2));
    assert!(!end(&mut all, &slice, 5));
    assert!(all.due().is_none() && all.tables.is_empty());
    assert_eq!(all.counts().dropped_rows, 32 + 5);
}

#[test]
fn what_was_read_of_a_prompt_is_kept_when_its_flow_goes_on() {
    let mut all = Calibrations::new(true);
    all.keep(kept(1, 1, (0, 40), 9));
    let slice = start(&mut all).unwrap();
    end(&mut all, &slice, 32);
    all.reserved(FlowId(1), 30);
    assert_eq!((all.counts().rows, all.waiting()), (32, 0));
    all.keep(kept(2, 1, (30, 40), 9));
    assert_eq!(all.table(RequestId(2)).unwrap().len(), 30);
}

#[test]
fn a_bubble_is_longer_than_what_it_is_for() {
    let ms = Duration::from_millis;
    let fits = |others: &[Option<Duration>]| is_bubble(others.iter().copied(), ms(5));
    assert!(fits(&[Some(ms(6))]) && fits(&[Some(ms(6)), Some(ms(9))]));
    assert!(!fits(&[Some(ms(5))]) && !fits(&[Some(ms(6)), Some(ms(1))]));
    assert!(!fits(&[Some(ms(6)), None]) && !fits(&[]));
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
            if let Some(slice) = start(&mut all) {
                prop_assert!(slice.segment.tokens > 0 && slice.segment.tokens <= SLICE_ROWS);
                end(&mut all, &slice, slice.segment.tokens);
                all.table(slice.request);
            }
            all.forget(|flow| flow.0 < flows_kept);
            prop_assert!(all.tables.len() + all.pending.len() <= 2 * flows_kept as usize);
            prop_assert!(all.tables.values().all(|table| table.len() <= 100));
        }
    }
}
