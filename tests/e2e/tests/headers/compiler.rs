//! Reads C headers with a C compiler, because macros decide which symbol a name means. The headers are fetched for the
//! test: this repository contains no file of NVIDIA's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::{Outcome, run, tool};
use tempfile::TempDir;

/// Stand-ins for headers of other interfaces that NVIDIA's headers include, with the types that these use.
const OTHER_INTERFACES: [(&str, &str); 4] = [
    ("GL/gl.h", "typedef unsigned GLuint, GLenum;"),
    ("EGL/egl.h", "typedef int EGLint;"),
    ("EGL/eglext.h", "typedef void *EGLImageKHR, *EGLStreamKHR, *EGLSyncKHR;"),
    (
        "vdpau/vdpau.h",
        "typedef unsigned VdpDevice, VdpVideoSurface, VdpOutputSurface, VdpGetProcAddress(VdpDevice, unsigned, void **);",
    ),
];

/// The types of a function's arguments, as the compiler writes them.
pub(crate) type Prototype = Vec<String>;

/// A C compiler with directories of headers.
pub(crate) struct Compiler {
    include: Vec<PathBuf>,
    scratch: TempDir,
}

impl Compiler {
    /// A compiler that finds the headers in these directories.
    pub(crate) fn new(include: Vec<PathBuf>) -> Compiler {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in OTHER_INTERFACES {
            let path = scratch.path().join(path);
            fs::create_dir_all(path.parent().expect("a header lies in a directory")).expect("a directory");
            fs::write(path, text).expect("a header");
        }
        Compiler { include, scratch }
    }

    /// The `names` of headers that exist.
    pub(crate) fn present<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        names.iter().copied().filter(|name| self.include.iter().any(|dir| dir.join(name).is_file())).collect()
    }

    /// Runs the compiler on the C text `source`.
    fn compile(&self, source: &str, arguments: &[&Path]) -> Outcome {
        let file = self.scratch.path().join("source.c");
        fs::write(&file, source).expect("a source file");
        let mut command = Command::new(tool("cc", "gcc libc6-dev"));
        command.args(["-std=gnu11", "-w", "-fmax-errors=0"]).arg("-I").arg(self.scratch.path());
        for dir in &self.include {
            command.arg("-I").arg(dir);
        }
        run(command.arg(file).args(arguments))
    }

    /// Every function that is declared with a name beginning with `prefix`.
    pub(crate) fn prototypes(&self, source: &str, prefix: &str) -> BTreeMap<String, Prototype> {
        let list = self.scratch.path().join("prototypes");
        let _ = self.compile(source, &["-fsyntax-only".as_ref(), "-aux-info".as_ref(), &list]).success();
        let text = fs::read_to_string(list).expect("the compiler's list of functions");
        text.lines().filter_map(prototype).filter(|(name, _)| name.starts_with(prefix)).collect()
    }

    /// The C text `source` after preprocessing.
    pub(crate) fn preprocessed(&self, source: &str) -> String {
        self.compile(source, &["-E".as_ref(), "-P".as_ref()]).success().stdout
    }

    /// The same, with all comments.
    pub(crate) fn preprocessed_with_comments(&self, source: &str) -> String {
        self.compile(source, &["-E".as_ref(), "-C".as_ref(), "-P".as_ref()]).success().stdout
    }

    /// The compiler's error messages for `source`, a line each.
    pub(crate) fn errors(&self, source: &str) -> Vec<String> {
        let outcome = self.compile(source, &["-fsyntax-only".as_ref()]);
        outcome.stderr.lines().filter(|line| line.contains("error:")).map(str::to_owned).collect()
    }

    /// The values of these integer constant expressions, after `prelude`.
    pub(crate) fn values(&self, prelude: &str, expressions: &BTreeSet<String>) -> BTreeMap<String, usize> {
        let mut source = format!("#include <stdio.h>\n{prelude}\nint main(void) {{\n");
        for expression in expressions {
            source += &format!("printf(\"%zu\\n\", (size_t)({expression}));\n");
        }
        source += "}\n";
        let program = self.scratch.path().join("values");
        let _ = self.compile(&source, &["-o".as_ref(), &program]).success();
        let said = run(&mut Command::new(program)).success().stdout;
        let values = said.lines().map(|line| line.parse().expect("a number"));
        expressions.iter().cloned().zip(values).collect()
    }
}

/// Parses a line of the form `/* file:line:NC */ extern result name (type, type);`.
fn prototype(line: &str) -> Option<(String, Prototype)> {
    let (_, declaration) = line.split_once("*/ extern ")?;
    let (head, arguments) = declaration.split_once(" (")?;
    let name = head.rsplit([' ', '*']).next()?;
    let arguments = arguments.trim_end().strip_suffix(");")?;
    Some((name.to_owned(), split_at_commas(arguments)))
}

/// Splits a list of arguments at its commas, except those in parentheses.
fn split_at_commas(list: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for character in list.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    let parts = parts.into_iter().map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty() && part != "void").collect()
}

#[test]
fn a_list_of_arguments_is_split_outside_parentheses() {
    let line = "/* cuda.h:1:NC */ extern CUresult cuTry (int, void (*)(int, char *), const void *);";
    let (name, arguments) = prototype(line).unwrap();
    assert_eq!(
        (name.as_str(), arguments),
        ("cuTry", vec!["int".into(), "void (*)(int, char *)".into(), "const void *".into()])
    );
    assert_eq!(prototype("/* x */ extern int none (void);").unwrap().1, Vec::<String>::new());
}
