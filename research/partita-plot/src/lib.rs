//! Pictures: lines and distributions, bars, and the parts of other pictures.
//!
//! Scenes consist of rectangles, lines and text, so that equal data give equal bytes, in SVG and
//! in PNG.

pub mod bars;
pub mod canvas;
pub mod grouped;
pub mod lines;

use std::io;
use std::path::Path;

use kuva::backend::png::PngBackend;
use kuva::backend::svg::SvgBackend;
use kuva::render::render::Scene;

pub struct Picture {
    /// Its file's name without an extension.
    pub name: &'static str,
    scene: Scene,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Picture").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Picture {
    /// A scene under a name.
    pub fn of(name: &'static str, scene: Scene) -> Self {
        Self { name, scene }
    }

    /// The picture as SVG.
    pub fn svg(&self) -> String {
        SvgBackend::new().render_scene(&self.scene)
    }

    /// The picture as PNG.
    ///
    /// # Errors
    /// The library's message.
    pub fn png(&self) -> Result<Vec<u8>, String> {
        PngBackend::new().with_scale(1.5).render_scene(&self.scene)
    }

    /// Writes `file` with the extensions svg and png.
    ///
    /// # Errors
    /// The library cannot draw, or the files cannot be written.
    pub fn save(&self, file: &Path) -> io::Result<()> {
        let save = |extension, bytes: &[u8]| {
            let path = file.with_extension(extension);
            std::fs::write(&path, bytes)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        };
        save("svg", self.svg().as_bytes())?;
        save("png", &self.png().map_err(io::Error::other)?)
    }
}
