//! Prints a graph as stable text, for people and snapshots.

use std::fmt;

use super::{Op, OpGraph};

impl fmt::Display for OpGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for id in self.ops() {
            let node = self.op(id);
            let operands: Vec<&str> = self
                .operands(id)
                .into_iter()
                .map(|operand| self.op(operand).name.as_str())
                .collect();
            write!(
                f,
                "{}[c, {}] = {}({}",
                node.name,
                node.width,
                node.op.kind(),
                operands.join(", ")
            )?;
            write_attributes(f, &node.op)?;
            writeln!(f, ")")?;
        }
        Ok(())
    }
}

fn write_attributes(f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
    match op {
        Op::Input => {}
        Op::RmsNorm {
            eps,
            offset,
            groups,
            ..
        } => {
            write!(f, "; eps {eps}, offset {offset}, groups {groups}")?;
        }
        Op::LayerNorm { eps, .. } => write!(f, "; eps {eps}")?,
        Op::Linear { .. } => {}
        Op::Rope {
            heads,
            rotated,
            table,
        } => {
            write!(f, "; heads {heads}, rotated {rotated}, table {table}")?;
        }
        Op::Attention(a) => {
            write!(
                f,
                "; {}/{} heads of {}, scale {}",
                a.heads, a.kv_heads, a.head_dim, a.scale
            )?;
            if let Some(window) = a.window {
                write!(f, ", window {window}")?;
            }
            if let Some(cap) = a.softcap {
                write!(f, ", softcap {cap}")?;
            }
            if !a.sight.is_causal() {
                write!(f, ", sight {:?}", a.sight)?;
            }
        }
        Op::Activated(activation) | Op::Gated(activation) => write!(f, "; {activation:?}")?,
        Op::Add { b_scale } => {
            if *b_scale != 1.0 {
                write!(f, "; b × {b_scale}")?;
            }
        }
        Op::Scale { factor } => write!(f, "; × {factor}")?,
        Op::SoftCap { cap } => write!(f, "; cap {cap}")?,
    }
    for param in op.params() {
        write!(f, "; {} {:?}", param.source.name, param.shape)?;
        if let Some(row) = param.source.first_row {
            write!(f, " from row {row}")?;
        }
    }
    Ok(())
}
