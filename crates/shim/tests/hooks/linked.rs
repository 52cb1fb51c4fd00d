//! A program that links the library by its header, in C and in C++.

use std::path::Path;
use std::process::Command;

use crate::can_manage;
use crate::vmm::{build, shim};

#[test]
fn a_vmm_can_link_the_library() {
    if !can_manage() {
        return;
    }
    let include = format!("-I{}/include", env!("CARGO_MANIFEST_DIR"));
    let directory = shim().parent().map(Path::to_path_buf).expect("the shim is in a directory");
    let directory = directory.display();
    let (search, find) = (format!("-L{directory}"), format!("-Wl,-rpath,{directory}"));
    for flags in [&["-xc", "-std=gnu99"][..], &["-xc++"]] {
        // Behind the language: libraries are none.
        let libraries = ["-xnone", &search, &find, "-lbindery_shim"];
        let program = build("linked", &[flags, &[&include]].concat(), &libraries);
        let output = Command::new(program)
            .env("BINDERY_SOCKET", "/nonexistent/bindery.sock")
            .env("BINDERY_LOG_FILE", "/dev/null")
            .output()
            .expect("the program");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{flags:?}");
    }
}
