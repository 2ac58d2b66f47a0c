//! The errors at the device boundary, as data.
//!
//! Variants hold the requested and the found values; the text is made here and nowhere else. The
//! caller maps them to the four causes of the project (input, incompatible, environment, bug),
//! since it knows where the model and the memory came from.

use std::path::PathBuf;
use std::sync::Arc;

use crate::locate::OPENVINO_VERSION;
use crate::tensor::TensorType;

/// Failure of a call into OpenVINO, or of a check made before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenvinoError {
    /// None of the usual places has a folder with the OpenVINO libraries.
    #[error(
        "OpenVINO `{OPENVINO_VERSION}` not found, searched: {}",
        list(searched)
    )]
    LibraryNotFound {
        /// The searched folders, in order, each with its folders of libraries.
        searched: Vec<PathBuf>,
    },

    /// An environment variable points at a place that holds no OpenVINO.
    #[error(
        "environment variable `{variable}` is `{}`, which holds no OpenVINO library, searched: {}",
        value.display(),
        list(searched)
    )]
    EnvironmentUnusable {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: PathBuf,
        /// The searched folder, with its folders of libraries.
        searched: Vec<PathBuf>,
    },

    /// The libraries exist, but users who could not change this program could change them.
    #[error("OpenVINO in `{}` is not used, since others could change it", folder.display())]
    LibraryExposed {
        /// The folder of the libraries.
        folder: PathBuf,
        /// The problem with the folder.
        source: heg_files::FileError,
    },

    /// A library that the NPU's plugin would open can be changed by users who could not change this program.
    #[error("the NPU is not used, since others could change its library `{}`", library.display())]
    NpuLibraryExposed {
        /// The library.
        library: PathBuf,
        /// The problem with it.
        source: Arc<heg_files::FileError>,
    },

    /// The library exists, but cannot be loaded.
    #[error("cannot load `{}`: {message}", path.display())]
    LibraryUnusable {
        /// The file or folder that was to be loaded.
        path: PathBuf,
        /// The loader's message.
        message: String,
    },

    /// The library is of a release for whose C interface this crate was not written.
    #[error("`{}` is OpenVINO `{found}`, this build needs `{expected}`", path.display())]
    VersionMismatch {
        /// The library.
        path: PathBuf,
        /// The release for which this crate was written.
        expected: &'static str,
        /// The library's own version.
        found: String,
    },

    /// A process can load OpenVINO only once, and it was loaded from elsewhere.
    #[error(
        "OpenVINO is already loaded from `{}`, cannot load it from `{}` as well",
        loaded.display(),
        requested.display()
    )]
    AlreadyLoaded {
        /// The library in use.
        loaded: PathBuf,
        /// The requested library.
        requested: PathBuf,
    },

    /// A tensor was made before any [`Core`](crate::Core) was loaded.
    #[error("OpenVINO is not loaded yet")]
    NotLoaded,

    /// OpenVINO refused a call.
    #[error("`{function}` failed with `{status}`: {message}")]
    Call {
        /// Function of the C interface.
        function: &'static str,
        /// Name of its status code.
        status: String,
        /// OpenVINO's message. It keeps one message per process: if calls fail on several threads
        /// at once, this may be another call's.
        message: String,
    },

    /// A text for OpenVINO contains a zero byte.
    #[error("{what} contains a zero byte: `{}`", text.escape_debug())]
    ZeroByte {
        /// The meaning of the text.
        what: &'static str,
        /// The text.
        text: String,
    },

    /// The property's value is a pointer, which text cannot express.
    #[error("property `{name}` takes a pointer and cannot be set from text")]
    PointerProperty {
        /// Name of the property.
        name: String,
    },

    /// A file could not be created or read.
    #[error("cannot write `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },

    /// The operating system has no memory left.
    #[error("cannot allocate `{bytes}` bytes")]
    Allocation {
        /// Requested size in bytes.
        bytes: usize,
    },

    /// A range reaches past the end of its memory.
    #[error("`{bytes}` bytes at offset `{offset}` do not fit into memory of `{len}` bytes")]
    OutOfBounds {
        /// Offset of the range's first byte.
        offset: usize,
        /// Length of the range, in bytes.
        bytes: usize,
        /// Length of the memory, in bytes.
        len: usize,
    },

    /// A view does not start at a multiple of its element's size.
    #[error("view at offset `{offset}` is not aligned to the `{align}` bytes of its elements")]
    Misaligned {
        /// Offset of the view's first byte.
        offset: usize,
        /// Size of an element, in bytes.
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

    /// A shape has more dimensions than this crate supports.
    #[error("tensor has `{rank}` dimensions, at most `{max}` are supported")]
    RankTooLarge {
        /// Number of dimensions.
        rank: usize,
        /// Maximum number of dimensions.
        max: usize,
    },

    /// Read-only memory was bound to an output.
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
        /// The requested index.
        index: usize,
        /// Number of ports.
        count: usize,
    },

    /// A tensor's shape does not fit the port to which it is bound.
    #[error("port `{port}` has shape `{expected}`, the tensor has `{found:?}`")]
    ShapeMismatch {
        /// Name or index of the port.
        port: String,
        /// Shape of the port, `?` for a dynamic dimension.
        expected: String,
        /// Shape of the tensor.
        found: Vec<usize>,
    },

    /// A tensor does not have the required element type.
    #[error("`{port}` has elements of `{expected}`, the tensor has `{found}`")]
    ElementTypeMismatch {
        /// Name or index of the port, or another destination of the tensor.
        port: String,
        /// Required type.
        expected: TensorType,
        /// Given type.
        found: TensorType,
    },

    /// OpenVINO uses an element type that this crate does not support.
    #[error("`{port}` has elements of unsupported type `{found}`")]
    ElementTypeUnsupported {
        /// Name or index of the port.
        port: String,
        /// OpenVINO's name of the type.
        found: String,
    },

    /// Two lengths do not agree.
    #[error("source has `{found}` {unit}, destination has room for `{expected}`")]
    LengthMismatch {
        /// The unit of the lengths.
        unit: &'static str,
        /// Length of the destination.
        expected: usize,
        /// Length of the source.
        found: usize,
    },

    /// The request is running: started, and not yet waited for to the end.
    #[error("cannot {what} while the request is running")]
    Busy {
        /// The requested operation.
        what: &'static str,
    },

    /// There is no inference to wait for.
    #[error("the request has not been started")]
    NotStarted,

    /// The inference was cancelled before it ended; its outputs are unspecified.
    #[error("the inference was cancelled")]
    Cancelled,

    /// The inference succeeded, but the completion callback panicked.
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
