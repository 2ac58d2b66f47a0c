//! Programs as sections of a bundle.

use super::Program;
use crate::document;
use crate::error::Error;
use crate::manifest::Kernel;

impl Program {
    /// Reads and checks a bundle's program for `kernel`, a kernel of its manifest. The result can be run without
    /// another check.
    ///
    /// Errors: [`Error::Program`], [`Error::InvalidProgram`].
    pub fn read(bytes: &[u8], kernel: &Kernel) -> Result<Self, Error> {
        if bytes.len() > PROGRAM_BYTES_MAX {
            return Err(Error::InvalidProgram {
                kernel: kernel.name.clone(),
                field: "length".to_owned(),
                found: format!("`{}` bytes", bytes.len()),
                expected: format!("at most `{PROGRAM_BYTES_MAX}`"),
            });
        }
        let program: Self = document::parse(bytes).map_err(|error| Error::Program {
            kernel: kernel.name.clone(),
            line: error.span.start.line,
            column: error.span.start.col,
            message: error.code.to_string(),
        })?;
        program.check(kernel)?;
        Ok(program)
    }

    /// Returns the bytes of the program's section. Equal programs give equal bytes.
    ///
    /// Errors: [`Error::EncodeProgram`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let text = document::to_text(self).map_err(|source| Error::EncodeProgram { source })?;
        Ok(text.into_bytes())
    }
}

/// Length of the longest section that is read as a program. Chosen: the longest of the shipped families has 2 KiB.
const PROGRAM_BYTES_MAX: usize = 256 << 10;
