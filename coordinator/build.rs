//! Embeds the web console: the files of `console/dist`, which are built by `console/run build` and committed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dist = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../console/dist");
    println!("cargo:rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    collect(&dist, &mut files).map_err(|error| format!("{}: {error}; console/run build writes it", dist.display()))?;
    files.sort();
    let mut source = String::from("&[");
    for file in files {
        println!("cargo:rerun-if-changed={}", file.display());
        let path = file.strip_prefix(&dist)?.to_str().ok_or("a name is not UTF-8")?.to_owned();
        writeln!(source, "({path:?}, include_bytes!({:?})),", file.canonicalize()?)?;
    }
    source.push(']');
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("console.rs"), source)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
