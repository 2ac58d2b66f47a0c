//! Everything that can go wrong at the device boundary, as data.
//!
//! Variants hold what was asked and what was found; the text is made here and nowhere else.
//! Mapping to the four causes of the project (input, incompatible, environment, bug) is the
//! caller's, who knows where the model and the memory came from.

use std::path::PathBuf;

use crate::locate::OPENVINO_VERSION;
use crate::tensor::TensorType;

/// Failure of a call into OpenVINO, or of a check made before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No folder with the OpenVINO libraries in any of the usual places.
    #[error(
        "OpenVINO `{OPENVINO_VERSION}` not found, searched: {}",
        list(searched)
    )]
    LibraryNotFound {
        /// The folders that were looked at, in order, each with its folders of libraries.
        searched: Vec<PathBuf>,
    },

    /// An environment variable points at something that holds no OpenVINO.
    #[error(
        "environment variable `{variable}` is `{}`, which holds no OpenVINO library, searched: {}",
        value.display(),
        list(searched)
    )]
    EnvironmentUnusable {
        /// Name of the variable.
        variable: &'static str,
        /// What it is set to.
        value: PathBuf,
        /// The folder that was looked at, with its folders of libraries.
        searched: Vec<PathBuf>,
    },

    /// The libraries are there, and somebody could change them who could not change this program.
    #[error("OpenVINO in `{}` is not used, since others could change it", folder.display())]
    LibraryExposed {
        /// The folder of the libraries.
        folder: PathBuf,
        /// What is wrong with it.
        source: heg_files::FileError,
    },

    /// The library is there and cannot be loaded.
    #[error("cannot load `{}`: {message}", path.display())]
    LibraryUnusable {
        /// The file or folder that was to be loaded.
        path: PathBuf,
        /// The loader's words.
        message: String,
    },

    /// The library is of a release whose C interface this crate was not written for.
    #[error("`{}` is OpenVINO `{found}`, this build needs `{expected}`", path.display())]
    VersionMismatch {
        /// The library.
        path: PathBuf,
        /// Release this crate was written for.
        expected: &'static str,
        /// What the library says it is.
        found: String,
    },

    /// A process loads OpenVINO once, and it was loaded from elsewhere.
    #[error(
        "OpenVINO is already loaded from `{}`, cannot load it from `{}` as well",
        loaded.display(),
        requested.display()
    )]
    AlreadyLoaded {
        /// Library in use.
        loaded: PathBuf,
        /// Library asked for.
        requested: PathBuf,
    },

    /// A tensor was made before any [`Core`](crate::Core) was loaded.
    #[error("OpenVINO is not loaded yet")]
    NotLoaded,

    /// OpenVINO refused.
    #[error("`{function}` failed with `{status}`: {message}")]
    Call {
        /// Function of the C interface.
        function: &'static str,
        /// Name of its status code.
        status: String,
        /// OpenVINO's own words. It keeps one message per process: when calls fail on several
        /// threads at once, this may be another call's.
        message: String,
    },

    /// Text for OpenVINO must not contain a zero byte.
    #[error("{what} contains a zero byte: `{}`", text.escape_debug())]
    ZeroByte {
        /// What the text is.
        what: &'static str,
        /// The text.
        text: String,
    },

    /// The property's value is a pointer, which text cannot be.
    #[error("property `{name}` takes a pointer and cannot be set from text")]
    PointerProperty {
        /// Name of the property.
        name: String,
    },

    /// A file could not be made or read.
    #[error("cannot write `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },

    /// The operating system has no memory left.
    #[error("cannot allocate `{bytes}` bytes")]
    Allocation {
        /// What was asked for.
        bytes: usize,
    },

    /// A range reaches past the end of its memory.
    #[error("`{bytes}` bytes at offset `{offset}` do not fit into memory of `{len}` bytes")]
    OutOfBounds {
        /// First byte of the range.
        offset: usize,
        /// Length of the range.
        bytes: usize,
        /// Length of the memory.
        len: usize,
    },

    /// A view does not start at a multiple of its element's size.
    #[error("view at offset `{offset}` is not aligned to the `{align}` bytes of its elements")]
    Misaligned {
        /// First byte of the view.
        offset: usize,
        /// Size of an element.
        align: usize,
    },

    /// The size of a shape does not fit a machine word.
    #[error("shape `{shape:?}` of `{element}` is too large to address")]
    ShapeOverflow {
        /// Type of an element.
        element: TensorType,
        /// The shape.
        shape: Vec<usize>,
    },

    /// More dimensions than this crate passes on.
    #[error("tensor has `{rank}` dimensions, at most `{max}` are supported")]
    RankTooLarge {
        /// Number of dimensions.
        rank: usize,
        /// Limit.
        max: usize,
    },

    /// Memory that must not be written was bound to an output.
    #[error("output `{port}` is written, its memory is read-only")]
    ReadOnly {
        /// Name or index of the port.
        port: String,
    },

    /// The model has no such input or output.
    #[error("no {direction} `{index}`, the model has `{count}`")]
    PortMissing {
        /// `input` or `output`.
        direction: &'static str,
        /// Index asked for.
        index: usize,
        /// Number of ports.
        count: usize,
    },

    /// A tensor's shape does not fit the port it is bound to.
    #[error("port `{port}` has shape `{expected}`, the tensor has `{found:?}`")]
    ShapeMismatch {
        /// Name or index of the port.
        port: String,
        /// Shape of the port, `?` for a dynamic dimension.
        expected: String,
        /// Shape of the tensor.
        found: Vec<usize>,
    },

    /// A tensor's element type is not the one needed.
    #[error("`{port}` has elements of `{expected}`, the tensor has `{found}`")]
    ElementTypeMismatch {
        /// Name or index of the port, or what else was to take the tensor.
        port: String,
        /// Type needed.
        expected: TensorType,
        /// Type given.
        found: TensorType,
    },

    /// OpenVINO uses an element type that this crate does not pass on.
    #[error("`{port}` has elements of unsupported type `{found}`")]
    ElementTypeUnsupported {
        /// Name or index of the port.
        port: String,
        /// OpenVINO's name of the type.
        found: String,
    },

    /// Two lengths that must agree do not.
    #[error("source has `{found}` {unit}, destination has room for `{expected}`")]
    LengthMismatch {
        /// What is counted.
        unit: &'static str,
        /// Length of the destination.
        expected: usize,
        /// Length of the source.
        found: usize,
    },

    /// The request is running: started, and not yet waited for to the end.
    #[error("cannot {what} while the request is running")]
    Busy {
        /// What was asked for.
        what: &'static str,
    },

    /// There is no inference to wait for.
    #[error("the request has not been started")]
    NotStarted,

    /// The inference was cancelled before it ended; its outputs are unspecified.
    #[error("the inference was cancelled")]
    Cancelled,

    /// The inference ended well, and the completion callback panicked.
    #[error("the completion callback panicked: {message}")]
    CallbackPanicked {
        /// The panic's message.
        message: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "nothing".to_owned();
    }
    let quoted: Vec<String> = paths
        .iter()
        .map(|path| format!("`{}`", path.display()))
        .collect();
    quoted.join(", ")
}
