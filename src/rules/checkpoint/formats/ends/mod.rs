//! Whether a file has the end that its type requires. The extension gives the type. The check proves that the file was
//! not cut short; it does not check the content.

mod containers;
pub mod json;
mod structure;
#[cfg(test)]
pub(crate) mod tests;

use crate::checkpoint::listing::{Entry, Peek, extension_of};
pub(super) use containers::table;
use containers::{Verdict, hdf5, no_zeros, safetensors, torch, zip};
pub(super) use structure::{constant, pickle};

/// The first bytes of a `torch.save` file in the format before zip files: the pickle of a number. Tensors follow the
/// pickles.
const TORCH_PICKLE: &[u8] = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";
/// Extensions of files that hold weights or state, which are never empty. (A `.distcp` file is empty if its rank has nothing
/// to write.)
const WEIGHTS: &str = "pt pth ckpt tar bin keras npz zip safetensors h5 hdf5 json index pkl pickle ubj npy msgpack onnx model \
                       pdparams pdopt pdstates params states caffemodel solverstate eqx th cbm joblib weights";

/// Whether the file has the end that its type requires. Errors: why not, in one clause that begins with the path.
pub fn whole(peek: &dyn Peek, file: &Entry) -> Verdict {
    let verdict = match extension_of(file.name()).to_ascii_lowercase().as_str() {
        "pt" | "pth" | "ckpt" | "th" => torch(peek, file),
        // torch.save under other names, as Accelerate's random_states_0.pkl.
        "bin" | "pkl" | "pickle" | "tar" if starts_as_torchs(peek, file) => torch(peek, file),
        "tar" if file.name().to_ascii_lowercase().ends_with(".pth.tar") => torch(peek, file),
        "distcp" => no_zeros(peek, file),
        "keras" | "npz" | "zip" => zip(peek, file),
        "safetensors" => safetensors(peek, file),
        "h5" | "hdf5" => hdf5(peek, file),
        "json" => json::json(peek, file),
        "pkl" | "pickle" => pickle(peek, file),
        "npy" => structure::npy(peek, file),
        _ => Ok(()),
    };
    let verdict = if file.size == 0 && is_weights(file.name()) { Err("it is empty".to_owned()) } else { verdict };
    verdict.map_err(|why| format!("{}: {why}", file.path))
}

/// Whether a file of this name holds weights or state, so that it is never empty.
fn is_weights(name: &str) -> bool {
    let extension = extension_of(name).to_ascii_lowercase();
    WEIGHTS.split_whitespace().any(|known| known == extension) || name.contains(".data-")
}

/// Whether passing [`whole`] proves that the file was not cut short, because its type has a known end.
pub fn shows_its_end(peek: &dyn Peek, file: &Entry) -> bool {
    let starts_with = |magic: &[u8]| peek.read(&file.path, 0, magic.len()).is_some_and(|head| head == magic);
    match extension_of(file.name()).to_ascii_lowercase().as_str() {
        "keras" | "npz" | "zip" | "safetensors" | "h5" | "hdf5" | "json" | "npy" => true,
        "pkl" | "pickle" if !starts_with(TORCH_PICKLE) => true,
        "pt" | "pth" | "ckpt" | "th" | "tar" | "bin" | "pkl" | "pickle" => starts_with(b"PK\x03\x04"),
        _ => false,
    }
}

fn starts_as_torchs(peek: &dyn Peek, file: &Entry) -> bool {
    let head = peek.read(&file.path, 0, TORCH_PICKLE.len()).unwrap_or_default();
    let start = &head[..head.len().min(4)];
    !head.is_empty() && b"PK\x03\x04".starts_with(start) || head == TORCH_PICKLE
}
