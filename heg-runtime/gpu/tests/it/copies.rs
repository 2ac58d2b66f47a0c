//! Passes over memory that the host does not reach: what is brought before the first launch, and taken behind the last.

use std::time::Duration;

use heg_artifacts::manifest::{ElementType, Role};
use heg_artifacts::program::Step;
use heg_cpu::Activations;
use heg_gpu::{
    CallState, GpuCall, GpuCopies, GpuOrder, GpuPass, GpuProgram, GpuRows, GpuTask, StateLimits,
    Treatment,
};

use crate::both::Builder;
use crate::device::device_of;

const WIDTH: u32 = 300;

#[test]
fn bytes_are_brought_doubled_and_taken_time_after_time() {
    let test = "bytes_are_brought_doubled_and_taken_time_after_time";
    let Some(device) = device_of(test, Treatment::Discrete) else {
        return;
    };
    let mut builder = Builder::new(ElementType::Bf16, Activations::I8);
    let x = builder.input(Role::Attended, WIDTH);
    let out = builder.output(Role::Hidden, WIDTH);
    let factor = 2.0;
    builder.step(Step::Scale { x, factor, out });
    let subject = builder.done();
    let program = GpuProgram::new(
        subject.program,
        &subject.kernel,
        subject.kv,
        subject.activations,
    );
    let program = program.unwrap();
    let row_bytes = 4 * WIDTH as usize;
    let [first, second, third] = [(); 3].map(|()| GpuRows {
        region: device.memory(row_bytes as u64).unwrap(),
        stride: WIDTH,
    });
    let limits = StateLimits {
        rows: 1,
        layers: 0,
        cache_row_bytes: 0,
        positions: 1,
        tokens: 1,
    };
    let state = CallState::new(&device, limits).unwrap();
    let scratch = device.memory(4).unwrap();
    let doubled = |from: &GpuRows, to: &GpuRows| {
        let call = GpuCall {
            rows: 1,
            layer: 0,
            weights: &[],
            inputs: &[Some(from.clone())],
            outputs: &[Some(to.clone())],
            scratch: &scratch,
            state: &state,
        };
        GpuOrder::record(&device, &[&[GpuTask::Program(&program, call)]]).unwrap()
    };
    let orders = [doubled(&first, &second), doubled(&second, &third)];
    let mut copies = GpuCopies::new(&device).unwrap();
    let mut buffer = Vec::new();
    // Larger each time than staging memory is at first.
    let filler = device.memory(3 << 20).unwrap();
    for time in 1..4_u32 {
        copies.clear();
        let value = |at: u32| (at * time) as f32;
        let row: Vec<u8> = (0..WIDTH).flat_map(|at| value(at).to_ne_bytes()).collect();
        copies.bring(&first.region, 0, &row[..200]).unwrap();
        let filling = vec![time as u8; time as usize * 1_000_000];
        copies.bring(&filler, 0, &filling).unwrap();
        copies.bring(&first.region, 200, &row[200..]).unwrap();
        let mut pass = GpuPass::new(&mut copies, Duration::from_secs(60), None);
        pass.submit(&[&orders[0]], false).unwrap();
        let taken = pass.copies().take(&third.region, 40, row_bytes - 40);
        let filled = pass.copies().take(&filler, 0, filling.len());
        pass.submit(&[&orders[1]], true).unwrap();
        pass.finish().unwrap();
        let found = copies.read(&taken.unwrap(), &mut buffer).unwrap();
        let expected = (10..WIDTH).flat_map(|at| (4.0 * value(at)).to_ne_bytes());
        assert_eq!(found, expected.collect::<Vec<u8>>(), "{time}");
        assert!(
            copies.read(&filled.unwrap(), &mut buffer).unwrap() == filling,
            "{time}"
        );
    }
    assert!(
        copies
            .bring(&first.region, 4, &[0; 4 * WIDTH as usize])
            .is_err()
    );
    assert!(copies.take(&first.region, row_bytes as u64, 1).is_err());
    assert_eq!(device.complaints(), [""; 0]);
}
