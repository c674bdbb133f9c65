//! The versions of CUDA whose headers are read.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_harness::nvidia_headers;

use crate::compiler::{Compiler, Prototype};

/// One release of each minor version: its number, the package with the driver API's headers, the package's version.
const DRIVER_API: [(u32, &str, &str); 17] = [
    (11070, "nvidia-cuda-runtime-cu11", "11.7.99"),
    (11080, "nvidia-cuda-runtime-cu11", "11.8.89"),
    (12000, "nvidia-cuda-runtime-cu12", "12.0.146"),
    (12010, "nvidia-cuda-runtime-cu12", "12.1.105"),
    (12020, "nvidia-cuda-runtime-cu12", "12.2.140"),
    (12030, "nvidia-cuda-runtime-cu12", "12.3.101"),
    (12040, "nvidia-cuda-runtime-cu12", "12.4.127"),
    (12050, "nvidia-cuda-runtime-cu12", "12.5.82"),
    (12060, "nvidia-cuda-runtime-cu12", "12.6.77"),
    (12080, "nvidia-cuda-runtime-cu12", "12.8.90"),
    (12090, "nvidia-cuda-runtime-cu12", "12.9.79"),
    (13000, "nvidia-cuda-runtime", "13.0.96"),
    (13010, "nvidia-cuda-runtime", "13.1.80"),
    (13020, "nvidia-cuda-runtime", "13.2.75"),
    (13030, "nvidia-cuda-runtime", "13.3.29"),
    (13040, "nvidia-cuda-runtime", "13.4.92"),
    (13050, "nvidia-cuda-runtime", "13.5.37"),
];

/// Packages with the profiler's part of the driver API, which has not changed since CUDA 4.
const PROFILER: [(&str, &str); 3] = [
    ("nvidia-cuda-profiler-api-cu11", "11.8.86"),
    ("nvidia-cuda-profiler-api-cu12", "12.9.79"),
    ("nvidia-cuda-profiler-api", "13.5.25"),
];

/// Packages with NVML's header, each with its version of CUDA.
const NVML: [(u32, &str, &str); 7] = [
    (11070, "nvidia-nvml-dev-cu11", "11.7.91"),
    (11080, "nvidia-nvml-dev-cu11", "11.8.86"),
    (12000, "nvidia-nvml-dev-cu12", "12.0.140"),
    (12040, "nvidia-nvml-dev-cu12", "12.4.127"),
    (12090, "nvidia-nvml-dev-cu12", "12.9.79"),
    (13000, "nvidia-nvml-dev", "13.0.87"),
    (13050, "nvidia-nvml-dev", "13.5.37"),
];

/// Headers that declare functions of the driver.
const DRIVER_HEADERS: [&str; 5] = ["cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h"];
/// Headers that say since which version each form of a function exists.
const TYPEDEF_HEADERS: [&str; 5] =
    ["cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h", "cudaProfilerTypedefs.h"];

/// Makes the headers also declare the symbols of older versions.
const ALL_VERSIONS: &str = "#define __CUDA_API_VERSION_INTERNAL 1\n";
/// Makes the headers declare the symbols for programs with per-thread default streams.
const PER_THREAD_STREAMS: &str = "#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1\n";

/// The driver API as the headers of one version of CUDA describe it.
pub(crate) struct Toolkit {
    /// Its number, as `CUDA_VERSION`.
    pub(crate) version: u32,
    compiler: Compiler,
}

/// A function type of the `Typedefs` headers: the function's form since one version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Typedef {
    pub(crate) type_name: String,
    /// The function's unversioned name.
    pub(crate) name: String,
    /// The version since which programs get this form.
    pub(crate) since: u32,
    /// Whether it is the form with per-thread default streams.
    pub(crate) per_thread: bool,
}

impl Toolkit {
    /// The headers of every minor version.
    pub(crate) fn all() -> impl Iterator<Item = Toolkit> {
        DRIVER_API.into_iter().map(|(version, package, release)| {
            let (profiler, profiler_release) = PROFILER[(version / 1000 - 11) as usize];
            let include = vec![nvidia_headers(package, release), nvidia_headers(profiler, profiler_release)];
            Toolkit { version, compiler: Compiler::new(include) }
        })
    }

    /// C text that includes all headers, after `definitions`.
    fn declarations(&self, definitions: &str) -> String {
        let headers = self.compiler.present(&[DRIVER_HEADERS, TYPEDEF_HEADERS].concat());
        let includes: String = headers.into_iter().map(|header| format!("#include <{header}>\n")).collect();
        // A header uses `vdpau.h` without including it.
        format!("{definitions}#include <stddef.h>\n#include <vdpau/vdpau.h>\n{includes}")
    }

    /// Every function of the driver.
    pub(crate) fn functions(&self) -> BTreeMap<String, Prototype> {
        let mut functions = self.compiler.prototypes(&self.declarations(PER_THREAD_STREAMS), "cu");
        functions.extend(self.compiler.prototypes(&self.declarations(ALL_VERSIONS), "cu"));
        functions
    }

    /// Every function type with a version.
    pub(crate) fn typedefs(&self) -> BTreeSet<Typedef> {
        let text = self.compiler.preprocessed(&self.declarations(ALL_VERSIONS));
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let names = text.split(|character| !is_name(character)).filter(|word| word.starts_with("PFN_cu"));
        names.filter_map(Typedef::parse).collect()
    }

    /// Each error that the driver can return, with the header's description.
    pub(crate) fn errors(&self) -> BTreeMap<String, String> {
        let text = self.compiler.preprocessed_with_comments("#include <cuda.h>\n");
        let list = text.split_once("enum cudaError_enum").expect("the list of errors").1;
        let list = list.split_once("} CUresult").expect("the end of the list of errors").0;
        // Each part is a description and the name that it belongs to.
        let descriptions = list.split("/**").filter_map(|part| part.split_once("*/"));
        descriptions
            .filter_map(|(description, rest)| {
                let name = rest.trim().split([' ', '=']).next()?;
                let words: Vec<&str> = description.split_whitespace().filter(|word| *word != "*").collect();
                (!name.is_empty()).then(|| (name.to_owned(), words.join(" ")))
            })
            .collect()
    }

    /// The compiler's error messages for those of `assertions`, which are C expressions, that do not hold.
    pub(crate) fn violated(&self, assertions: impl Iterator<Item = String>) -> Vec<String> {
        let assertions: String = assertions.map(|holds| format!("_Static_assert({holds}, \"{holds}\");\n")).collect();
        self.compiler.errors(&(self.declarations(ALL_VERSIONS) + &assertions))
    }

    /// The values of these C expressions.
    pub(crate) fn values(&self, expressions: &BTreeSet<String>) -> BTreeMap<String, usize> {
        self.compiler.values(&self.declarations(ALL_VERSIONS), expressions)
    }
}

impl Typedef {
    /// For example, `PFN_cuMemcpy_v7000_ptds` is `cuMemcpy` since CUDA 7.0, with per-thread default streams.
    fn parse(type_name: &str) -> Option<Typedef> {
        let rest = type_name.strip_prefix("PFN_")?;
        let plain = rest.strip_suffix("_ptds").or_else(|| rest.strip_suffix("_ptsz"));
        let (name, since) = plain.unwrap_or(rest).rsplit_once("_v")?;
        let (name, since) = (name.to_owned(), since.parse().ok()?);
        Some(Typedef { type_name: type_name.to_owned(), name, since, per_thread: plain.is_some() })
    }
}

/// NVML as the header of one version describes it.
pub(crate) struct NvmlHeader {
    /// The version of CUDA that it came with.
    pub(crate) version: u32,
    compiler: Compiler,
}

impl NvmlHeader {
    /// The header in several versions.
    pub(crate) fn all() -> impl Iterator<Item = NvmlHeader> {
        NVML.into_iter().map(|(version, package, release)| NvmlHeader {
            version,
            compiler: Compiler::new(vec![nvidia_headers(package, release)]),
        })
    }

    /// Every function, by the name of its symbol.
    pub(crate) fn functions(&self) -> BTreeMap<String, Prototype> {
        self.compiler.prototypes(Self::DECLARATIONS, "nvml")
    }

    /// The values of these C expressions.
    pub(crate) fn values(&self, expressions: &BTreeSet<String>) -> BTreeMap<String, usize> {
        self.compiler.values(Self::DECLARATIONS, expressions)
    }

    const DECLARATIONS: &str = "#define NVML_NO_UNVERSIONED_FUNC_DEFS 1\n#include <stddef.h>\n#include <nvml.h>\n";
}
