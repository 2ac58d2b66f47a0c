//! The inputs of known-answer tests: noise generated from a seed, the same on every machine.
//!
//! Each port has its own stream, so that the order of ports does not matter. Values are multiples of 2⁻¹⁰ in [−1, 1):
//! exact in f16, so that variants with either activation type get the same inputs.

use crate::manifest::{KnownAnswers, Port, Role, Rows};

impl KnownAnswers {
    /// Position of the call's first token. The call takes the last rows of the context.
    pub fn position(&self) -> u32 {
        self.context.saturating_sub(self.rows)
    }

    /// Rows of a port in this call.
    pub fn rows_of(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Tokens => self.rows,
            Rows::Context => self.context,
            Rows::One => 1,
        }
    }

    /// Values of an input, row-major [rows, width]. Not for positions and rotary factors, which come from
    /// [`KnownAnswers::position`] and the place's table.
    pub fn values(&self, port: &Port) -> Vec<f32> {
        let count = self.rows_of(port.rows) as usize * port.width as usize;
        let mut bytes = vec![0; 2 * count];
        blake3::Hasher::new()
            .update(b"heg known answer 1")
            .update(&self.seed.to_le_bytes())
            .update(stream(port.role))
            .finalize_xof()
            .fill(&mut bytes);
        let (pairs, _) = bytes.as_chunks::<2>();
        let eleven_bits = pairs.iter().map(|pair| u16::from_le_bytes(*pair) >> 5);
        eleven_bits
            .map(|bits| f32::from(bits) / 1024.0 - 1.0)
            .collect()
    }
}

fn stream(role: Role) -> &'static [u8] {
    match role {
        Role::Hidden => b"hidden",
        Role::Cos => b"cos",
        Role::Sin => b"sin",
        Role::Query => b"query",
        Role::Key => b"key",
        Role::Value => b"value",
        Role::Position => b"position",
        Role::Attended => b"attended",
        Role::Logits => b"logits",
        Role::Vector => b"vector",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: KnownAnswers = KnownAnswers {
        seed: 7,
        rows: 2,
        context: 48,
    };

    fn port(role: Role, rows: Rows) -> Port {
        Port {
            role,
            rows,
            width: 512,
        }
    }

    #[test]
    fn values_are_exact_in_half_precision_and_fill_the_range() {
        let values = ASKED.values(&port(Role::Key, Rows::Context));
        assert_eq!(values.len(), 48 * 512);
        assert!(values.iter().all(|value| (value * 1024.0).fract() == 0.0));
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!(values.iter().any(|value| *value > 0.99));
    }

    /// The inputs of shipped bundles must not change.
    #[test]
    fn values_are_those_of_earlier_releases() {
        let values = ASKED.values(&port(Role::Hidden, Rows::Tokens));
        let expected = [0.5107422, -0.9824219, 0.2109375, -0.21777344];
        assert_eq!(values[..4], expected);
    }

    #[test]
    fn ports_and_seeds_have_streams_of_their_own() {
        let hidden = ASKED.values(&port(Role::Hidden, Rows::Tokens));
        assert_ne!(hidden, ASKED.values(&port(Role::Attended, Rows::Tokens)));
        let other = KnownAnswers { seed: 8, ..ASKED };
        assert_ne!(hidden, other.values(&port(Role::Hidden, Rows::Tokens)));
    }
}
