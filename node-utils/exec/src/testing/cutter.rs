//! A program that kills the script which calls it.

use std::fs;
use std::path::{Path, PathBuf};

use super::write_program;

/// A program in place of another one. It does the work of that, and kills the script that calls it at the call of a number.
#[derive(Debug)]
pub struct Cutter {
    folder: PathBuf,
    program: PathBuf,
}

/// The moment at which it kills.
#[derive(Debug, Clone, Copy)]
pub enum CutMoment {
    /// Before its work, which it does all the same: what is left of a cut connection. A caller that is no shell lives on.
    Before,
    /// After its work.
    After,
}

// === impl Cutter ===

impl Cutter {
    /// One in place of the program at this path, in a folder of its own. It kills nothing before `at` names a call.
    pub fn new(folder: &Path, of: &str, moment: CutMoment) -> Self {
        let name = Path::new(of).file_name().expect("a name");
        let cutter = Self {
            folder: folder.to_owned(),
            program: folder.join(name),
        };
        fs::create_dir_all(folder).expect("a folder");
        write_program(&cutter.program, include_str!("cutter.sh"));
        let moment = match moment {
            CutMoment::Before => "before",
            CutMoment::After => "after",
        };
        cutter.write("of", of);
        cutter.write("moment", moment);
        cutter.at(0);
        cutter
    }

    /// Its path, with the name of the other one.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// From now on, the call of this number kills; zero is none.
    pub fn at(&self, number: usize) {
        let _ = fs::remove_file(self.folder.join("done"));
        self.write("count", "0");
        self.write("at", &number.to_string());
    }

    /// Whether it has killed since then.
    pub fn is_done(&self) -> bool {
        self.folder.join("done").exists()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.join(file), text).expect("a file");
    }
}
