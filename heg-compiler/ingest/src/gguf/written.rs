//! GGUF files written by tests, valid or not.

/// A file under construction.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) keys: Vec<(String, Vec<u8>)>,
    pub(super) tensors: Vec<WrittenTensor>,
}

/// A tensor of a file under construction.
#[derive(Debug, Clone)]
pub(super) struct WrittenTensor {
    pub(super) name: String,
    /// Dimensions, slowest first.
    pub(super) shape: Vec<u64>,
    pub(super) number: u32,
    pub(super) data: Vec<u8>,
    /// Offset in the data, if not directly after the tensor before.
    pub(super) offset: Option<u64>,
}

pub(super) fn text(value: &str) -> Vec<u8> {
    [&8_u32.to_le_bytes()[..], &string(value)].concat()
}

pub(super) fn whole(value: u32) -> Vec<u8> {
    [4_u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub(super) fn number(value: f32) -> Vec<u8> {
    [6_u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub(super) fn texts(values: &[&str]) -> Vec<u8> {
    let mut value = 9_u32.to_le_bytes().to_vec();
    value.extend(8_u32.to_le_bytes());
    value.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|text| value.extend(string(text)));
    value
}

fn string(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

impl Written {
    /// A model of the architecture llama: one layer, hidden size 32, two heads, all zeros.
    pub(super) fn llama() -> Self {
        let mut file = Self {
            keys: Vec::new(),
            tensors: Vec::new(),
        };
        file.set("general.architecture", text("llama"));
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("attention.head_count", 2),
        ] {
            file.set(&format!("llama.{key}"), whole(value));
        }
        file.set("llama.attention.layer_norm_rms_epsilon", number(1e-5));
        file.set("tokenizer.ggml.model", text("gpt2"));
        file.set("tokenizer.ggml.pre", text("gpt-2"));
        let tokens = ["<|endoftext|>", "a", "b", "c", "d", "e", "f", "ab"];
        file.set("tokenizer.ggml.tokens", texts(&tokens));
        file.set("tokenizer.ggml.merges", texts(&["a b"]));
        file.set("tokenizer.ggml.eos_token_id", whole(0));
        for (name, shape) in [
            ("token_embd.weight", &[8, 32][..]),
            ("output_norm.weight", &[32]),
            ("blk.0.attn_norm.weight", &[32]),
            ("blk.0.attn_q.weight", &[32, 32]),
            ("blk.0.attn_k.weight", &[32, 32]),
            ("blk.0.attn_v.weight", &[32, 32]),
            ("blk.0.attn_output.weight", &[32, 32]),
            ("blk.0.ffn_norm.weight", &[32]),
            ("blk.0.ffn_gate.weight", &[64, 32]),
            ("blk.0.ffn_up.weight", &[64, 32]),
            ("blk.0.ffn_down.weight", &[32, 64]),
        ] {
            let elements: u64 = shape.iter().product();
            file.add(name, shape, 0, vec![0; elements as usize * 4]);
        }
        file
    }

    /// Sets a key; replaces an existing one in place.
    pub(super) fn set(&mut self, key: &str, value: Vec<u8>) {
        match self.keys.iter_mut().find(|(known, _)| known == key) {
            Some(known) => known.1 = value,
            None => self.keys.push((key.to_owned(), value)),
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.keys.retain(|(known, _)| known != key);
    }

    pub(super) fn add(&mut self, name: &str, shape: &[u64], number: u32, data: Vec<u8>) {
        self.tensors.push(WrittenTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            number,
            data,
            offset: None,
        });
    }

    /// A tensor of the file, for changes.
    pub(super) fn tensor(&mut self, name: &str) -> &mut WrittenTensor {
        let mut tensors = self.tensors.iter_mut();
        tensors.find(|tensor| tensor.name == name).unwrap()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3_u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            file.extend(string(key));
            file.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            file.extend(string(&tensor.name));
            file.extend((tensor.shape.len() as u32).to_le_bytes());
            for dimension in tensor.shape.iter().rev() {
                file.extend(dimension.to_le_bytes());
            }
            file.extend(tensor.number.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        file
    }
}
