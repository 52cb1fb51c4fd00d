//! A guest's memory as a picture: a pixel is a page, or a block of pages as warm as its warmest.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use super::history::Temperature;

/// Pixels of a row: 2 MiB of pages.
const WIDTH: usize = 512;

/// Rows at most: 4 GiB of memory are shown page by page, and more in blocks.
const HEIGHT_MAX: usize = 2048;

/// Red, green and blue of what is cold, warm, hot, and no memory at all.
const COLOURS: [[u8; 3]; 4] = [[24, 32, 64], [232, 150, 48], [255, 244, 200], [128, 128, 128]];

/// A picture, as indices of [`COLOURS`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    pixels: Vec<u8>,
    /// Pages of one pixel.
    block_pages: usize,
}

const fn colour(temperature: Temperature) -> u8 {
    match temperature {
        Temperature::Cold => 0,
        Temperature::Warm => 1,
        Temperature::Hot => 2,
    }
}

/// What is left of the last row.
const NOTHING: u8 = 3;

impl Picture {
    /// Draws `pages` pages, from the left to the right and from the top down.
    pub(crate) fn draw(pages: usize, temperatures: impl Iterator<Item = Temperature>) -> Self {
        let block_pages = pages.div_ceil(WIDTH * HEIGHT_MAX).next_power_of_two();
        let rows = pages.div_ceil(block_pages).div_ceil(WIDTH).max(1);
        let mut pixels = vec![NOTHING; rows * WIDTH];
        for (page, temperature) in temperatures.enumerate() {
            let pixel = &mut pixels[page / block_pages];
            let warmest = if *pixel == NOTHING { 0 } else { *pixel };
            *pixel = warmest.max(colour(temperature));
        }
        Self { pixels, block_pages }
    }

    /// Width and height, in pixels.
    pub(crate) const fn size(&self) -> (usize, usize) {
        (WIDTH, self.pixels.len() / WIDTH)
    }

    /// What is to be seen where.
    pub(crate) fn describe(&self, path: &Path) -> String {
        let (width, height) = self.size();
        let pixel = match self.block_pages {
            1 => "a page".to_owned(),
            pages => format!("{pages} pages"),
        };
        format!(
            "{}: {width} x {height} pixels of {pixel} each; blue is cold, orange warm, white hot",
            path.display()
        )
    }

    /// Writes it as PNG.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let (width, height) = self.size();
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = png::Encoder::new(file, width as u32, height as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_palette(COLOURS.as_flattened());
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        Ok(writer.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use super::Temperature::{Cold, Hot, Warm};
    use super::*;

    #[test]
    fn a_small_guest_has_a_pixel_for_each_page() {
        let picture = Picture::draw(600, repeat_n(Cold, 599).chain([Hot]));
        assert_eq!((picture.size(), picture.block_pages), ((512, 2), 1));
        assert_eq!((picture.pixels[0], picture.pixels[598], picture.pixels[599]), (0, 0, 2));
        assert!(picture.pixels[600..].iter().all(|pixel| *pixel == NOTHING));
    }

    #[test]
    fn a_large_guest_has_blocks_as_warm_as_their_warmest_page() {
        let pages = 3 * WIDTH * HEIGHT_MAX;
        let temperatures = [Cold, Warm, Hot, Cold].into_iter().chain(repeat_n(Cold, pages - 4));
        let picture = Picture::draw(pages, temperatures);
        assert_eq!(picture.block_pages, 4);
        assert_eq!(picture.pixels[..2], [2, 0]);
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let directory = tempfile::tempdir().expect("a directory for the picture");
        let path = directory.path().join("memory.png");
        let picture = Picture::draw(4, [Cold, Warm, Hot, Warm].into_iter());
        picture.write(&path).expect("the picture can be written");
        let file = std::io::BufReader::new(File::open(&path).expect("it is there"));
        let mut decoder = png::Decoder::new(file);
        decoder.set_transformations(png::Transformations::EXPAND);
        let mut reader = decoder.read_info().expect("it is a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("it is small")];
        let info = reader.next_frame(&mut pixels).expect("it is whole");
        assert_eq!((info.width, info.height, info.color_type), (512, 1, png::ColorType::Rgb));
        assert_eq!(pixels[..12], *[COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[1]].as_flattened());
    }
}
