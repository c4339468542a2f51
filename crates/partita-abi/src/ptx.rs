//! Tests of the text of every PTX module in this crate.

use core::ffi::CStr;
use std::process::Command;
use std::string::String;
use std::vec::Vec;
use std::{env, format, fs, println};

/// The module has these kernels, with parameters of so many bytes, and no others.
pub(crate) fn has_kernels(module: &CStr, kernels: &[(&CStr, &[usize])]) {
    let ptx = module.to_str().unwrap();
    for (kernel, bytes) in kernels {
        let name = kernel.to_str().unwrap();
        let entry = ptx.split(&format!(".visible .entry {name}(")).nth(1).unwrap();
        let header = entry.split(')').next().unwrap();
        assert_eq!(header.matches(".param .u").count(), bytes.len(), "{name}");
        for (index, bytes) in bytes.iter().enumerate() {
            let parameter = format!(".param .u{} {name}_{index}", bytes * 8);
            assert!(header.contains(&parameter), "{parameter}");
        }
    }
    assert_eq!(ptx.matches(".entry").count(), kernels.len());
}

/// The module is plain text that the drivers of old GPUs accept.
pub(crate) fn is_for_old_targets(module: &CStr) {
    let ptx = module.to_str().unwrap();
    assert!(ptx.is_ascii());
    assert!(ptx.contains("\n.version 6.0\n.target sm_30\n.address_size 64\n"));
}

/// The assembler accepts the module without a warning, for each target; returns its output for
/// each. `PARTITA_PTXAS` is the path of `ptxas`; without it, this checks nothing and says so.
pub(crate) fn is_assembled(module: &CStr, name: &str) -> Vec<String> {
    let Some(ptxas) = env::var_os("PARTITA_PTXAS") else {
        println!("skipped: PARTITA_PTXAS does not name a ptxas");
        return Vec::new();
    };
    let directory = env::temp_dir().join(format!("partita-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let source = directory.join(format!("{name}.ptx"));
    fs::write(&source, module.to_bytes()).unwrap();
    let assemble = |target| {
        let output = Command::new(&ptxas)
            .args([&format!("--gpu-name={target}"), "--warning-as-error", "-v", "-o"])
            .arg(directory.join(target))
            .arg(&source)
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{target}: {messages}");
        messages
    };
    let told = ["sm_75", "sm_80", "sm_90"].map(assemble);
    fs::remove_dir_all(&directory).unwrap();
    told.into()
}
