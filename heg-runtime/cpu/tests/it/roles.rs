//! Programs that no bundle has: `CpuKernel::new` and `CpuDevice::run` are safe for any.

use heg_artifacts::manifest::{Kernel as Declared, Port, Role, Rows, Work};
use heg_artifacts::program::{Attention, Buffer, BufferId, BufferPlace, Program, RowForm, Step};
use heg_cpu::{
    Activations, CacheForm, CpuCall, CpuDevice, CpuDeviceOptions, CpuKernel, Isa, ProgramRows,
};
use heg_spec::{Group, Sight};
use std::num::NonZeroUsize;

fn port(role: Role, rows: Rows, width: u32) -> Port {
    Port { role, rows, width }
}

fn attention(inputs: Vec<Port>) -> (Declared, Program) {
    let declared = Declared {
        name: "mha".to_owned(),
        group: Group::Mha,
        ops: Vec::new(),
        inputs,
        outputs: vec![port(Role::Attended, Rows::Tokens, 256)],
        parameters: Vec::new(),
        work: Work::default(),
        variants: Vec::new(),
    };
    let buffer = |place| Buffer {
        name: "rows".to_owned(),
        width: 256,
        form: RowForm::Plain,
        place,
    };
    let attributes = Attention {
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        scale: 0.1,
        window: None,
        softcap: None,
        sight: Sight::Causal,
    };
    let program = Program {
        buffers: vec![
            buffer(BufferPlace::Input(0)),
            buffer(BufferPlace::Output(0)),
        ],
        steps: vec![Step::Attention {
            attributes,
            out: BufferId(1),
        }],
    };
    (declared, program)
}

/// Attention finds keys by role: of two ports with that role, a call was once checked against one and read as wide as
/// the other.
#[test]
fn a_role_that_comes_twice_is_refused() {
    let inputs = |narrow: Option<Role>| {
        let mut ports = vec![port(Role::Query, Rows::Tokens, 256)];
        ports.extend(narrow.map(|role| port(role, Rows::Tokens, 1)));
        ports.push(port(Role::Key, Rows::Context, 256));
        ports.push(port(Role::Value, Rows::Context, 256));
        ports.push(port(Role::Position, Rows::One, 1));
        ports
    };
    let made = |narrow| {
        let (declared, program) = attention(inputs(narrow));
        CpuKernel::new(program, &declared, CacheForm::F32, Activations::F32)
    };
    assert!(made(None).is_ok());
    for (role, index) in [(Role::Key, 2), (Role::Value, 3), (Role::Query, 1)] {
        let error = made(Some(role)).err().and_then(|error| {
            let source = std::error::Error::source(&error)?;
            Some(source.to_string())
        });
        let expected = format!(
            "the program of kernel `mha` is invalid: `inputs[{index}].role` is `{role:?}`, \
             expected every role once on a side"
        );
        assert_eq!(error, Some(expected));
    }
}

/// Scales stand behind heads: with other heads, a row would be read past its end.
#[test]
fn heads_other_than_those_of_the_cache_are_refused() {
    let (declared, program) = attention(vec![
        port(Role::Query, Rows::Tokens, 256),
        port(Role::Key, Rows::Context, 256),
        port(Role::Value, Rows::Context, 256),
        port(Role::Position, Rows::One, 1),
    ]);
    let made = |head_dim| {
        let form = CacheForm::I8 { head_dim };
        let made = CpuKernel::new(program.clone(), &declared, form, Activations::F32);
        made.err().map(|error| error.to_string())
    };
    assert_eq!(made(64), None);
    let refused = |found: &str| {
        Some(format!(
            "heads of keys and values of kernel `mha`: expected those of the model, which have scales of their own, \
             found {found}"
        ))
    };
    assert_eq!(made(32), refused("attention with heads of 64"));
    assert_eq!(made(48), refused("rows of 256 elements"));
}

/// Attention addresses queries by one stride: it once read behind the first of two runs.
#[test]
fn queries_in_two_runs_are_refused() {
    let (declared, program) = attention(vec![
        port(Role::Query, Rows::Tokens, 256),
        port(Role::Key, Rows::Context, 256),
        port(Role::Value, Rows::Context, 256),
        port(Role::Position, Rows::One, 1),
    ]);
    let kernel = CpuKernel::new(program, &declared, CacheForm::F32, Activations::F32).unwrap();
    let mut device = CpuDevice::new(CpuDeviceOptions {
        isa: Isa::best(),
        threads: NonZeroUsize::MIN,
    })
    .unwrap();
    let bytes = [0; 2 * 1024];
    let rows = |count: usize| ProgramRows::of(&bytes[..count * 1024], 1024);
    let mut refused = |queries: &[ProgramRows<'_>]| {
        let call = CpuCall {
            rows: 2,
            weights: &[],
            inputs: &[queries, &[], &[], &[]],
            outputs: &[&[rows(2)]],
            contexts: &[],
        };
        device.run(&kernel, &call).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&[rows(1), rows(1)]),
        "runs of rows of queries of a call: expected 1, found 2"
    );
    // One run passes that check, and the call has no contexts.
    assert_eq!(
        refused(&[rows(2)]),
        "tokens of the contexts of a call: expected 2, found 0"
    );
}
