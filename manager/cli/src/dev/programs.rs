//! Finds the programs of the cluster.

use std::env;
use std::path::{Path, PathBuf};

use crate::checkout::Checkout;
use crate::error::{Failure, Result};
use crate::server::{NODE_MANAGER, SCHEDULER};

/// The programs of the cluster.
pub(super) struct Programs {
    pub(super) manager: PathBuf,
    pub(super) scheduler: PathBuf,
}

impl Programs {
    /// The programs beside this one, or on the PATH. Builds them if this one was built in a checkout.
    pub(super) fn find() -> Result<Programs> {
        let exe = env::current_exe()
            .map_err(|error| Failure::new(format!("cannot find the path of this program: {error}")))?;
        let beside = exe.parent().unwrap_or(Path::new("/")).to_owned();
        if let Some(checkout) = Checkout::of(&beside)
            && [&NODE_MANAGER, &SCHEDULER].iter().any(|server| !beside.join(server.program).is_file())
        {
            checkout.build("the node manager and the scheduler", &[NODE_MANAGER.program, SCHEDULER.program])?;
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let dirs: Vec<PathBuf> = std::iter::once(beside).chain(env::split_paths(&path)).collect();
        Ok(Programs { manager: find(NODE_MANAGER.program, &dirs)?, scheduler: find(SCHEDULER.program, &dirs)? })
    }
}

fn find(program: &str, dirs: &[PathBuf]) -> Result<PathBuf> {
    dirs.iter().map(|dir| dir.join(program)).find(|file| file.is_file()).ok_or_else(|| {
        Failure::new(format!("{program} is neither in {} nor on the PATH", dirs[0].display())).hint(format!(
            "build it in a checkout of aliquot: cargo build --release; or install it beside this program: {}",
            dirs[0].display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_program_beside_this_one_goes_first() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths: Vec<PathBuf> = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        let missing = find("a-program", &paths).unwrap_err();
        assert!(missing.to_string().contains(&paths[0].display().to_string()), "{missing}");
        for dir in paths.iter().rev() {
            fs::write(dir.join("a-program"), "").unwrap();
            assert_eq!(find("a-program", &paths).unwrap(), dir.join("a-program"));
        }
    }
}
