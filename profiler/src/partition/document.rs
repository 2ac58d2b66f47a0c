//! The document of partitions that a bundle carries: who does what of each product, per machine.
//!
//! RON, as annotations are: fields in their order, lists in theirs, no spaces. Documents come from files, so their length
//! is bounded before they are read, and every cut is checked against its product.

use heg_spec::{Cut, CutProduct};
use serde::{Deserialize, Serialize};

use super::{CutShape, PartitionError};

/// Revision of the document's content. A reader accepts this revision and older ones.
pub const PARTITIONS_REVISION: u32 = 1;

/// Longest document that is read, in bytes. Chosen: ten times what a model with prompts in chunks of 1024 needs on three
/// machines.
pub const PARTITIONS_BYTES_MAX: usize = 1 << 20;

/// The root of the document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partitions {
    /// See [`PARTITIONS_REVISION`].
    pub revision: u32,
    /// Machines, each by the name of its SoC file.
    pub socs: Vec<SocPartition>,
}

/// The partition of a model on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocPartition {
    /// Name of its SoC file.
    pub soc: String,
    /// Static sizes of the first device, in tokens, ascending.
    pub static_tokens: Vec<u32>,
    /// Products, in execution order.
    pub products: Vec<ProductPartition>,
}

/// The cuts of one product.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductPartition {
    /// The product.
    pub product: CutProduct,
    /// Its output rows.
    pub rows: u32,
    /// Output rows at whose multiples it is cut.
    pub row_step: u32,
    /// Classes of c for prompts, ascending.
    pub prefill: Vec<ClassCut>,
    /// Classes of rows for decoding, ascending.
    pub decode: Vec<ClassCut>,
}

/// The cut of a class of c.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassCut {
    /// Tokens of its largest call; the smallest has one more than the class before.
    pub tokens: u32,
    /// Cuts of its calls.
    pub cut: Cut,
    /// Expected time of the largest call in µs, hand-over included.
    pub latency_us: f64,
    /// The same whole on the first device, without hand-over, where it has a size for it.
    pub first_us: Option<f64>,
    /// The same whole on the second device, without hand-over.
    pub second_us: Option<f64>,
}

impl Partitions {
    /// A document of these machines.
    pub fn new(socs: Vec<SocPartition>) -> Self {
        Self {
            revision: PARTITIONS_REVISION,
            socs,
        }
    }

    /// The machine of this name.
    pub fn soc(&self, name: &str) -> Option<&SocPartition> {
        self.socs.iter().find(|found| found.soc == name)
    }

    /// Reads a document.
    ///
    /// Errors: [`PartitionError::TooLong`], [`PartitionError::Syntax`], [`PartitionError::Revision`],
    /// [`PartitionError::Document`], [`PartitionError::Misfit`].
    pub fn parse(text: &str) -> Result<Self, PartitionError> {
        check_length(text.len())?;
        let found: Self = options().from_str(text).map_err(|error| {
            let head: Option<Head> = options().from_str(text).ok();
            let newer = head.and_then(|head| check_revision(head.revision).err());
            newer.unwrap_or_else(|| PartitionError::Syntax {
                line: error.span.start.line,
                column: error.span.start.col,
                message: error.code.to_string(),
            })
        })?;
        found.check()?;
        Ok(found)
    }

    /// The document's text, the same for equal documents.
    ///
    /// Errors: what [`Self::parse`] would not read again.
    pub fn to_text(&self) -> Result<String, PartitionError> {
        self.check()?;
        let text = options().to_string(self);
        let text = text.map_err(|error| PartitionError::Syntax {
            line: 1,
            column: 1,
            message: error.to_string(),
        })?;
        check_length(text.len())?;
        Ok(text)
    }

    fn check(&self) -> Result<(), PartitionError> {
        check_revision(self.revision)?;
        for (index, soc) in self.socs.iter().enumerate() {
            if self
                .socs
                .iter()
                .skip(index + 1)
                .any(|other| other.soc == soc.soc)
            {
                return Err(soc.wrong("machines", "it is there more than once".to_owned()));
            }
            soc.check()?;
        }
        Ok(())
    }
}

/// As much of a later revision as every one has.
#[derive(Deserialize)]
struct Head {
    revision: u32,
}

impl SocPartition {
    /// The cuts of a product.
    pub fn product(&self, product: CutProduct) -> Option<&ProductPartition> {
        self.products.iter().find(|found| found.product == product)
    }

    /// Checks that the products are those of a model.
    ///
    /// Errors: [`PartitionError::Document`] for one that the model does not have, or not with these rows.
    pub fn check_products(&self, shapes: &[CutShape]) -> Result<(), PartitionError> {
        for ProductPartition { product, rows, .. } in &self.products {
            let of_model = shapes.iter().find(|shape| shape.product == *product);
            let expected = of_model.map_or(0, |shape| shape.rows);
            if *rows != expected {
                let message = format!("expected the model's {expected} rows, found {rows}");
                return Err(self.wrong(product.name(), message));
            }
        }
        Ok(())
    }

    fn wrong(&self, what: &str, message: String) -> PartitionError {
        PartitionError::Document {
            soc: self.soc.clone(),
            what: what.to_owned(),
            message,
        }
    }

    fn check(&self) -> Result<(), PartitionError> {
        let sizes = &self.static_tokens;
        if sizes.contains(&0) || !sizes.is_sorted_by(|a, b| a < b) {
            let message = format!("expected sizes from 1 token, ascending, found {sizes:?}");
            return Err(self.wrong("static_tokens", message));
        }
        for (index, product) in self.products.iter().enumerate() {
            let name = product.product.name();
            let later = self.products.iter().skip(index + 1);
            if later.clone().any(|other| other.product == product.product) {
                return Err(self.wrong(name, "it is there more than once".to_owned()));
            }
            self.check_classes(product, "prefill", &product.prefill)?;
            self.check_classes(product, "decode", &product.decode)?;
        }
        Ok(())
    }

    fn check_classes(
        &self,
        product: &ProductPartition,
        when: &str,
        classes: &[ClassCut],
    ) -> Result<(), PartitionError> {
        let what = format!("{} {when}", product.product);
        let mut before = 0;
        for class in classes {
            if class.tokens <= before {
                let message = format!(
                    "expected classes above {before} tokens next, found {}",
                    class.tokens
                );
                return Err(self.wrong(&what, message));
            }
            let misfit = |misfit| PartitionError::Misfit {
                soc: self.soc.clone(),
                product: product.product,
                tokens: class.tokens,
                misfit,
            };
            // A cut holds for every call of its class, so it has to fit the smallest too.
            for tokens in [before + 1, class.tokens] {
                let checked = class.cut.check(product.rows, tokens, product.row_step);
                checked.map_err(misfit)?;
            }
            if let Some(size) = sizes_of(&class.cut)
                .iter()
                .find(|size| when == "prefill" && !self.static_tokens.contains(*size))
            {
                let message = format!("expected a size of {:?}, found {size}", self.static_tokens);
                return Err(self.wrong(&what, message));
            }
            let latencies = [Some(class.latency_us), class.first_us, class.second_us];
            if let Some(found) = latencies
                .into_iter()
                .flatten()
                .find(|us| !(us.is_finite() && *us > 0.0))
            {
                let message = format!("expected latencies above 0 µs, found {found:?}");
                return Err(self.wrong(&what, message));
            }
            before = class.tokens;
        }
        Ok(())
    }
}

impl ProductPartition {
    /// The class of a prompt's call; none for one that is longer than every class.
    pub fn prefill(&self, tokens: u32) -> Option<&ClassCut> {
        class_of(&self.prefill, tokens)
    }

    /// The class of an iteration over `rows` rows.
    pub fn decode(&self, rows: u32) -> Option<&ClassCut> {
        class_of(&self.decode, rows)
    }

    /// The class of a call of devices that take any number of tokens, and are not told what it is a call of: that of an
    /// iteration if it is short enough for one, else that of a prompt.
    pub fn call(&self, tokens: u32) -> Option<&ClassCut> {
        self.decode(tokens).or_else(|| self.prefill(tokens))
    }
}

fn class_of(classes: &[ClassCut], tokens: u32) -> Option<&ClassCut> {
    let index = classes.partition_point(|class| class.tokens < tokens);
    classes.get(index)
}

/// Static sizes that a cut needs.
fn sizes_of(cut: &Cut) -> &[u32] {
    match cut {
        Cut::Tokens { sizes } => sizes,
        Cut::Hybrid { padded_tokens, .. } => std::slice::from_ref(padded_tokens),
        Cut::Whole(_) | Cut::Rows { .. } => &[],
    }
}

fn check_length(found: usize) -> Result<(), PartitionError> {
    match found > PARTITIONS_BYTES_MAX {
        true => Err(PartitionError::TooLong {
            found,
            limit: PARTITIONS_BYTES_MAX,
        }),
        false => Ok(()),
    }
}

fn check_revision(found: u32) -> Result<(), PartitionError> {
    match (1..=PARTITIONS_REVISION).contains(&found) {
        true => Ok(()),
        false => Err(PartitionError::Revision {
            found,
            supported: PARTITIONS_REVISION,
        }),
    }
}

fn options() -> ron::Options {
    ron::Options::default()
        .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
        .with_recursion_limit(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "(revision:1,socs:[(soc:\"x\",static_tokens:[32,64],products:[(product:Down,rows:1024,row_step:256,\
                        prefill:[(tokens:32,cut:Rows(first:512),latency_us:9.5,first_us:20.0,second_us:18.0),\
                        (tokens:64,cut:Tokens(sizes:[32]),latency_us:19.5,first_us:40.0,second_us:36.0)],\
                        decode:[(tokens:1,cut:Whole(Second),latency_us:1.0,first_us:None,second_us:1.0)])])])";

    #[test]
    fn a_document_reads_as_it_was_written() {
        let found = Partitions::parse(GOOD).unwrap();
        assert_eq!(found.to_text().unwrap(), GOOD);
        let down = found.soc("x").unwrap().product(CutProduct::Down).unwrap();
        assert_eq!(
            down.prefill(33).unwrap().cut,
            Cut::Tokens { sizes: vec![32] }
        );
        assert_eq!(down.prefill(65), None);
        assert_eq!(down.decode(1).unwrap().latency_us, 1.0);
        let cuts = [1, 2, 64, 65].map(|tokens| down.call(tokens).map(|class| &class.cut));
        let (one, two) = (&down.decode[0].cut, &down.prefill[0].cut);
        let last = &down.prefill[1].cut;
        assert_eq!(cuts, [Some(one), Some(two), Some(last), None]);
        assert!(found.soc("y").is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |from: &str, to: &str| {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            Partitions::parse(&text).unwrap_err().to_string()
        };
        insta::assert_snapshot!(
            [
                refused("first:512", "first:1024"),
                refused("first:512", "first:300"),
                refused("row_step:256", "row_step:0"),
                refused("sizes:[32]", "sizes:[64,32]"),
                refused("sizes:[32]", "sizes:[48]"),
                refused("sizes:[32]", "sizes:[]"),
                refused("tokens:64,", "tokens:32,"),
                refused("latency_us:9.5", "latency_us:-1"),
                refused("first_us:20.0", "first_us:inf"),
                refused("[32,64]", "[64,32]"),
                refused("revision:1", "revision:2"),
                refused("revision:1", "revision:2,later:1"),
                refused("socs", "machines"),
                refused("decode:", "decoding:"),
            ]
            .join("\n")
        );
        let long = " ".repeat(PARTITIONS_BYTES_MAX + 1);
        assert!(matches!(
            Partitions::parse(&long),
            Err(PartitionError::TooLong { .. })
        ));
        let good = Partitions::parse(GOOD).unwrap();
        let shape = |product, rows| CutShape {
            product,
            rows,
            depth: 64,
            matrices: 1,
            unit_rows: 1,
            row_bytes: 64.0,
        };
        let of_model = |shapes: &[CutShape]| good.socs[0].check_products(shapes);
        let head = shape(CutProduct::Head, 4096);
        assert_eq!(of_model(&[head, shape(CutProduct::Down, 1024)]), Ok(()));
        let refused = of_model(&[head, shape(CutProduct::Down, 512)]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "partition of `x`, down: expected the model's 512 rows, found 1024"
        );
        assert!(of_model(&[head]).is_err());
        let twice = Partitions::new(vec![Partitions::parse(GOOD).unwrap().socs.remove(0); 2]);
        assert!(twice.to_text().is_err());
    }
}
