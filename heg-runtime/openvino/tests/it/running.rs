//! Tests of asynchronous runs, callbacks, cancellation and threads, on the CPU plugin.
//!
//! Slow models take about a second; assertions are on order, never on times. Skipped, and reported, if OpenVINO is not
//! installed.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::tiny_models::{add, buffer, bytes, core, products, rows};
use heg_openvino::{Core, HostBuffer, InferRequest, OpenvinoError, Progress, Tensor, TensorType};

/// Size and number of products of a model slow enough to be caught running, with steps short enough to be cancelled
/// soon.
const SLOW: (usize, usize) = (768, 60);

fn add_request(core: &Core) -> InferRequest {
    let weights = bytes(&buffer(&[1.0; 4]));
    let model = core.read_model(add().as_bytes(), Some(&weights)).unwrap();
    core.compile(&model, "CPU", &[]).unwrap().request().unwrap()
}

fn slow_request(core: &Core) -> (InferRequest, Arc<HostBuffer>) {
    let (n, count) = SLOW;
    let model = core
        .read_model(products(n, count).as_bytes(), None)
        .unwrap();
    let mut request = core.compile(&model, "CPU", &[]).unwrap().request().unwrap();
    let input = buffer(&vec![0.0; n * n]);
    request.bind_input(0, square(&input)).unwrap();
    (request, input)
}

fn square(memory: &Arc<HostBuffer>) -> Tensor {
    Tensor::new(memory.clone(), 0, TensorType::F32, &[SLOW.0, SLOW.0]).unwrap()
}

fn fails<T>(result: Result<T, OpenvinoError>, text: &str) {
    assert_eq!(result.err().expect("an error").to_string(), text);
}

#[test]
fn a_started_request_finishes_and_calls_back_once_per_start() {
    let Some(core) = core() else { return };
    let mut request = add_request(core);
    let (sender, receiver) = mpsc::channel();
    request
        .on_done(move || sender.send(thread::current().id()).unwrap())
        .unwrap();
    for run in 0..3 {
        request
            .bind_input(0, rows(&buffer(&[run as f32; 4]), 0, 1))
            .unwrap();
        request.start().unwrap();
        assert_eq!(request.wait(None).unwrap(), Progress::Finished);
        assert_ne!(receiver.try_recv().unwrap(), thread::current().id());
        assert_eq!(
            request.output(0).unwrap().to_f32().unwrap(),
            [run as f32 + 1.0; 4]
        );
    }
    request.infer().unwrap();
    receiver
        .try_recv()
        .expect_err("no call for a synchronous run");
    fails(request.wait(None), "the request has not been started");
}

#[test]
fn a_running_request_is_pending_and_refuses_changes() {
    let Some(core) = core() else { return };
    let (mut request, input) = slow_request(core);
    request.start().unwrap();
    assert_eq!(
        request.wait(Some(Duration::ZERO)).unwrap(),
        Progress::Pending
    );
    assert_eq!(
        request.wait(Some(Duration::from_millis(1))).unwrap(),
        Progress::Pending
    );
    let busy = |what: &str| format!("cannot {what} while the request is running");
    fails(
        request.bind_input(0, square(&input)),
        &busy("bind an input"),
    );
    fails(
        request.bind_output(0, square(&input)),
        &busy("bind an output"),
    );
    fails(request.infer(), &busy("infer"));
    fails(request.start(), &busy("start"));
    fails(request.on_done(|| ()), &busy("replace the callback"));
    fails(request.output(0), &busy("read an output"));
    assert_eq!(
        request.wait(Some(Duration::from_secs(60))).unwrap(),
        Progress::Finished
    );
    request.output(0).unwrap();
}

/// A run that does not end keeps its memory for ever, and nobody waits for it.
#[test]
fn a_run_that_does_not_end_in_time_is_left_behind_with_its_tensors() {
    let Some(core) = core() else { return };
    let slow = || {
        let (request, input) = slow_request(core);
        (request, Arc::downgrade(&input))
    };
    let (mut request, input) = slow();
    request.start().unwrap();
    assert!(!request.end_within(Duration::ZERO));
    drop(request);
    assert!(input.upgrade().is_some());

    let (mut request, input) = slow();
    request.start().unwrap();
    assert!(request.end_within(Duration::from_secs(60)));
    assert!(request.end_within(Duration::ZERO));
    drop(request);
    assert!(input.upgrade().is_none());
}

#[test]
fn a_cancelled_request_says_so_calls_back_and_runs_again() {
    let Some(core) = core() else { return };
    let (mut request, _) = slow_request(core);
    request.cancel().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let count = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    request.on_done(count).unwrap();
    request.start().unwrap();
    request.cancel().unwrap();
    fails(request.wait(None), "the inference was cancelled");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    request.start().unwrap();
    assert_eq!(request.wait(None).unwrap(), Progress::Finished);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn a_failed_run_tells_why_when_waited_for() {
    let Some(core) = core() else { return };
    let mut request = add_request(core);
    let (sender, receiver) = mpsc::channel();
    request.on_done(move || sender.send(()).unwrap()).unwrap();
    request
        .bind_input(0, rows(&buffer(&[0.0; 8]), 0, 2))
        .unwrap();
    request
        .bind_output(0, rows(&buffer(&[0.0; 4]), 0, 1))
        .unwrap();
    request.start().unwrap();
    let error = request.wait(Some(Duration::from_secs(60))).unwrap_err();
    assert!(
        matches!(
            error,
            OpenvinoError::Call {
                function: "ov_infer_request_wait",
                ..
            }
        ),
        "{error}"
    );
    receiver.try_recv().unwrap();
}

#[test]
fn a_panic_in_the_callback_stays_in_it() {
    let Some(core) = core() else { return };
    let mut request = add_request(core);
    request
        .bind_input(0, rows(&buffer(&[1.0; 4]), 0, 1))
        .unwrap();
    request
        .on_done(|| resume_unwind(Box::new("on purpose")))
        .unwrap();
    request.start().unwrap();
    fails(
        request.wait(None),
        "the completion callback panicked: on purpose",
    );
    assert_eq!(request.output(0).unwrap().to_f32().unwrap(), [2.0; 4]);
    request.on_done(|| ()).unwrap();
    request.start().unwrap();
    assert_eq!(request.wait(None).unwrap(), Progress::Finished);
}

#[test]
fn dropping_a_running_request_ends_it_before_its_memory_goes() {
    let Some(core) = core() else { return };
    let (mut request, input) = slow_request(core);
    let (sender, receiver) = mpsc::channel();
    request.on_done(move || sender.send(()).unwrap()).unwrap();
    request.start().unwrap();
    drop(request);
    receiver
        .try_recv()
        .expect("the callback came before the end of the drop");
    assert_eq!(Arc::strong_count(&input), 1);
}

#[test]
fn many_threads_share_a_model_with_a_request_each() {
    let Some(core) = core() else { return };
    let weights = bytes(&buffer(&[1.0; 4]));
    let model = core.read_model(add().as_bytes(), Some(&weights)).unwrap();
    let compiled = core
        .compile(&model, "CPU", &[("NUM_STREAMS", "2")])
        .unwrap();
    // One buffer for all: each thread reads and writes its own rows.
    let (x, y) = (buffer(&[0.0; 16]), buffer(&[0.0; 16]));
    thread::scope(|scope| {
        for row in 0..4 {
            let (compiled, x, y) = (&compiled, &x, &y);
            scope.spawn(move || {
                let mut request = compiled.request().unwrap();
                for run in 0..200_u16 {
                    let value = f32::from(run) + row as f32 * 1000.0;
                    x.write_f32(row * 16, &[value; 4]).unwrap();
                    request.bind_input(0, rows(x, row, 1)).unwrap();
                    request.bind_output(0, rows(y, row, 1)).unwrap();
                    if run % 2 == 0 {
                        request.infer().unwrap();
                    } else {
                        request.start().unwrap();
                        assert_eq!(request.wait(None).unwrap(), Progress::Finished);
                    }
                    let mut result = [0.0; 4];
                    y.read_f32(row * 16, &mut result).unwrap();
                    assert_eq!(result, [value + 1.0; 4]);
                }
            });
        }
    });
}

#[test]
fn a_request_moves_to_another_thread_with_its_tensors() {
    let Some(core) = core() else { return };
    let mut request = add_request(core);
    request
        .bind_input(0, rows(&buffer(&[4.0; 4]), 0, 1))
        .unwrap();
    request.start().unwrap();
    let result = thread::spawn(move || {
        assert_eq!(request.wait(None).unwrap(), Progress::Finished);
        request.output(0).unwrap().to_f32().unwrap()
    });
    assert_eq!(result.join().unwrap(), [5.0; 4]);
}
