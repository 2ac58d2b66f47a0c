//! Programs: written programs read back, wrong ones are refused, and an accepted program never reads memory that
//! another buffer has taken.

mod cases;

use heg_artifacts::manifest::Kernel;
use heg_artifacts::program::{
    Buffer, BufferId, BufferPlace, ParameterId, Program, RowForm, SCRATCH_STEP, Step, scratch_width,
};
use proptest::prelude::*;

use cases::{MHA, ffn, mha, qkv};

/// The check's message about a changed program, without the words that all messages share.
fn refusal((kernel, mut program): (Kernel, Program), change: impl FnOnce(&mut Program)) -> String {
    change(&mut program);
    let bytes = program.to_bytes().unwrap();
    let said = Program::read(&bytes, &kernel).unwrap_err().to_string();
    let common = format!("the program of kernel `{}` is invalid: ", kernel.name);
    said.strip_prefix(&common).unwrap().to_owned()
}

#[test]
fn what_is_written_is_read() {
    for (kernel, program) in [ffn(), qkv(), mha()] {
        let bytes = program.to_bytes().unwrap();
        assert_eq!(Program::read(&bytes, &kernel).unwrap(), program);
        assert_eq!(program.to_bytes().unwrap(), bytes);
    }
    assert_eq!(ffn().1.scratch_elements(), 1024);
    assert_eq!(mha().1.scratch_elements(), 0);
}

#[test]
fn text_that_is_no_program() {
    let (kernel, _) = mha();
    let read = |bytes: &[u8]| Program::read(bytes, &kernel).unwrap_err().to_string();
    let expected =
        "the program of kernel `mha` does not parse at line `1`, column `10`: Expected opening `[`";
    assert_eq!(read(b"(buffers: 1"), expected);
    let expected = "the program of kernel `mha` is invalid: `length` is `262145` bytes, expected at most `262144`";
    assert_eq!(read(&vec![b' '; (256 << 10) + 1]), expected);
    assert!(read(&[b'['; 200_000]).contains("does not parse"));
}

fn buffer(program: &mut Program, index: usize) -> &mut Buffer {
    &mut program.buffers[index]
}

#[test]
fn buffers_that_do_not_fit() {
    let said = refusal(ffn(), |program| buffer(program, 2).width = 79);
    assert_eq!(
        said,
        "`buffers[2].width` is `79`, expected `80`, the width of the port"
    );
    let said = refusal(ffn(), |program| {
        buffer(program, 2).place = BufferPlace::Input(7)
    });
    assert_eq!(
        said,
        "`buffers[2].place` is `Input(7)`, expected a port with a row for each token"
    );
    let said = refusal(qkv(), |program| {
        buffer(program, 0).place = BufferPlace::Input(1)
    });
    assert_eq!(
        said,
        "`buffers[0].place` is `Input(1)`, expected a port with a row for each token"
    );
    let said = refusal(ffn(), |program| buffer(program, 0).form = RowForm::Operand);
    assert_eq!(
        said,
        "`buffers[0].form` is `Operand`, expected `Plain` at a port"
    );
    let said = refusal(ffn(), |program| {
        buffer(program, 3).place = BufferPlace::Scratch { first: 130 };
    });
    assert_eq!(
        said,
        "`buffers[3].place` is `130`, expected a multiple of `64`"
    );
    let said = refusal(ffn(), |program| {
        let first = u32::MAX / SCRATCH_STEP * SCRATCH_STEP;
        buffer(program, 3).place = BufferPlace::Scratch { first };
    });
    assert_eq!(
        said,
        "`buffers[3].place` is `4294967232`, expected an end that can be counted"
    );
    let said = refusal(ffn(), |program| {
        buffer(program, 3).name = "\u{1b}[2J".to_owned()
    });
    assert_eq!(
        said,
        r#"`buffers[3].name` is `"\u{1b}[2J"`, expected a name without control characters"#
    );
    let said = refusal(qkv(), |program| {
        buffer(program, 5).place = BufferPlace::Output(1)
    });
    assert_eq!(
        said,
        "`buffers[7].place` is `Output(1)`, expected one buffer for a port"
    );
    let said = refusal(qkv(), |program| drop(program.buffers.remove(5)));
    assert_eq!(
        said,
        "`buffers` is without it, expected a buffer for output Value"
    );
}

#[test]
fn steps_that_do_not_fit() {
    let said = refusal(ffn(), |program| {
        program.steps[0] = Step::Copy {
            x: BufferId(9),
            out: BufferId(1),
        }
    });
    assert_eq!(
        said,
        "`steps[0].x` is `9`, expected less than the number of buffers: `9`"
    );
    let said = refusal(ffn(), |program| {
        part(program, 1, 0).weight = ParameterId(5);
    });
    assert_eq!(
        said,
        "`steps[1].parts[0].weight` is `(I8, [80, 200])`, expected a matrix of shape `[80, 70]`"
    );
    let said = refusal(ffn(), |program| {
        part(program, 3, 1).bias = Some(ParameterId(1))
    });
    assert_eq!(
        said,
        "`steps[3].parts[1].bias` is `(F32, [80])`, expected a parameter of shape `[200]` in F32"
    );
    let said = refusal(ffn(), |program| buffer(program, 4).form = RowForm::Plain);
    assert_eq!(said, "`steps[3].x` is `normed`, expected operands");
    let said = refusal(ffn(), |program| buffer(program, 5).form = RowForm::Operand);
    assert_eq!(
        said,
        "`steps[3].parts[0].out` is `gate`, expected plain rows"
    );
    let said = refusal(qkv(), |program| {
        buffer(program, 4).place = BufferPlace::Output(2);
        program.buffers[5].place = BufferPlace::Scratch { first: 192 };
    });
    assert_eq!(
        said,
        "`steps[1].parts[2].out` is `v`, expected another buffer: keys and values are stored by norms, rotations and copies"
    );
    let said = refusal(qkv(), |program| {
        program.steps[3] = Step::RmsNorm {
            x: BufferId(3),
            weight: ParameterId(3),
            eps: f32::NAN,
            offset: 1.0,
            groups: 2,
            out: BufferId(6),
        };
    });
    assert_eq!(
        said,
        "`steps[3].eps` is `NaN`, expected a finite number of at least `0`"
    );
    for (heads, rotated, expected) in [
        (
            3,
            8,
            "`steps[4].heads` is `3`, expected a divisor of the width `16`",
        ),
        (
            0,
            8,
            "`steps[4].heads` is `0`, expected a divisor of the width `16`",
        ),
        (
            2,
            10,
            "`steps[4].rotated` is `10`, expected an even number of at most `8` dimensions",
        ),
        (
            2,
            6,
            "`steps[4].rotated` is `6`, expected twice `4`, the width of input Cos",
        ),
    ] {
        let said = refusal(qkv(), |program| {
            program.steps[4] = Step::Rope {
                x: BufferId(6),
                heads,
                rotated,
                out: BufferId(7),
            };
        });
        assert_eq!(said, expected);
    }
}

fn part(program: &mut Program, step: usize, part: usize) -> &mut heg_artifacts::program::Part {
    match &mut program.steps[step] {
        Step::Product { parts, .. } => &mut parts[part],
        other => panic!("{other:?}"),
    }
}

#[test]
fn attentions_that_do_not_fit() {
    let attributes = |program: &mut Program, change: fn(&mut heg_artifacts::program::Attention)| {
        let Step::Attention { attributes, .. } = &mut program.steps[0] else {
            panic!("no attention");
        };
        change(attributes);
    };
    let said = refusal(mha(), |program| attributes(program, |a| a.kv_heads = 3));
    assert_eq!(
        said,
        "`steps[0].attributes.heads` is `4`, expected a multiple of `kv_heads`: `3`"
    );
    let said = refusal(mha(), |program| {
        attributes(program, |a| a.head_dim = u32::MAX)
    });
    assert_eq!(
        said,
        "`steps[0].attributes` is `(4, 4294967295)`, expected heads that fill the `32` of input Query"
    );
    let said = refusal(mha(), |program| attributes(program, |a| a.window = Some(0)));
    assert_eq!(
        said,
        "`steps[0].attributes.window` is `Some(0)`, expected at least `1`"
    );
    let said = refusal(mha(), |program| {
        program.steps.push(program.steps[0].clone());
    });
    assert_eq!(
        said,
        "`steps[1]` is a step that writes buffer `0`, expected one that writes each buffer once"
    );
    let (kernel, _) = ffn();
    let said = refusal((kernel, mha().1), |program| {
        program.buffers[0].width = 80;
    });
    assert_eq!(
        said,
        "`steps[0].attributes` is in a kernel without it, expected input Position of One rows"
    );
}

#[test]
fn steps_that_do_not_follow() {
    let said = refusal(ffn(), |program| program.steps.swap(0, 1));
    assert_eq!(
        said,
        "`steps[0]` is a step that reads buffer `1`, expected one that reads what was written"
    );
    let said = refusal(ffn(), |program| part(program, 5, 0).out = BufferId(2));
    assert_eq!(
        said,
        "`steps[5]` is a step that writes buffer `2`, expected one that writes each buffer once"
    );
    let said = refusal(ffn(), |program| part(program, 5, 0).out = BufferId(3));
    assert_eq!(
        said,
        "`steps[5]` is a step that writes buffer `3`, expected one that writes each buffer once"
    );
    let said = refusal(ffn(), |program| drop(program.steps.pop()));
    assert_eq!(
        said,
        "`buffers[8]` is `out`, which no step writes, expected a buffer that is written"
    );
    let said = refusal(qkv(), |program| {
        program.steps[2] = Step::Copy {
            x: BufferId(3),
            out: BufferId(5),
        };
        program.steps.push(Step::Copy {
            x: BufferId(7),
            out: BufferId(6),
        });
    });
    assert_eq!(
        said,
        "`steps[5]` is a step that reads buffer `7`, expected one that reads no output"
    );
}

#[test]
fn memory_that_is_still_read() {
    let place = |program: &mut Program, index: usize, first| {
        buffer(program, index).place = BufferPlace::Scratch { first };
    };
    let said = refusal(ffn(), |program| place(program, 4, 192));
    assert_eq!(
        said,
        "`buffers[4].place` is `normed`, over buffer `x`, expected memory that no buffer in use has"
    );
    let said = refusal(ffn(), |program| place(program, 6, 384));
    assert_eq!(
        said,
        "`buffers[6].place` is `up`, over buffer `gate`, expected memory that no buffer in use has"
    );
    // An operand of the last step, and an earlier one.
    let said = refusal(ffn(), |program| place(program, 7, 64));
    assert_eq!(
        said,
        "`buffers[7].place` is `gated`, over buffer `x`, expected memory that no buffer in use has"
    );
    let (kernel, mut program) = ffn();
    place(&mut program, 6, 1024);
    place(&mut program, 7, 0);
    place(&mut program, 3, 2048);
    program.check(&kernel).unwrap();
}

/// Runs a program in which every piece of scratch memory holds the name of its last-written buffer.
fn run(program: &Program) {
    let pieces = |buffer: &Buffer| match buffer.place {
        BufferPlace::Scratch { first } => {
            let end = first + scratch_width(buffer.width);
            assert!(end <= program.scratch_elements());
            first / SCRATCH_STEP..end / SCRATCH_STEP
        }
        BufferPlace::Input(_) | BufferPlace::Output(_) => 0..0,
    };
    let mut memory = std::collections::BTreeMap::new();
    for step in &program.steps {
        for id in step.writes() {
            memory.extend(pieces(&program.buffers[id.0 as usize]).map(|piece| (piece, id)));
        }
        for id in step.reads().into_iter().chain(step.writes()) {
            let mut held = pieces(&program.buffers[id.0 as usize]);
            assert!(
                held.all(|piece| memory.get(&piece) == Some(&id)),
                "{program:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Replaces numbers of a program by other plausible ones.
    #[test]
    fn accepted_programs_keep_what_is_read(
        which in 0..3_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..10_u32, any::<bool>()), 1..4),
    ) {
        let (kernel, program) = [ffn, qkv, mha][which]();
        let mut text = String::from_utf8(program.to_bytes().unwrap()).unwrap();
        for (at, number, is_place) in changes {
            let starts: Vec<usize> = text.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
            let start = starts[at.index(starts.len())];
            let tail = text[start..].trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
            let head = text[..start].trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
            let number = if is_place { number * SCRATCH_STEP } else { number };
            text = format!("{head}{number}{tail}");
        }
        if let Ok(program) = Program::read(text.as_bytes(), &kernel) {
            run(&program);
            prop_assert!(!program.text(&kernel).to_string().is_empty());
        }
    }

    #[test]
    fn foreign_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>()) {
        let (kernel, _) = mha();
        prop_assert!(Program::read(&bytes, &kernel).is_err());
        let mut damaged = MHA.as_bytes().to_vec();
        let at = at.index(damaged.len());
        let end = damaged.len().min(at + bytes.len());
        damaged.splice(at..end, bytes);
        if let Ok(program) = Program::read(&damaged, &kernel) {
            run(&program);
        }
    }
}
