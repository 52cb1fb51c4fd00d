//! A picture to draw on, with text that needs no fonts of the system.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::{FONT_7X13, FONT_9X15_BOLD};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{Line, PrimitiveStyle, Rectangle};
use embedded_graphics::text::{Alignment, Text};

/// A colour from its usual hexadecimal form.
pub(super) const fn colour(rgb: u32) -> Rgb888 {
    Rgb888::new((rgb >> 16) as u8, (rgb >> 8) as u8, rgb as u8)
}

/// How large text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    Heading,
}

/// Pixels, from the left to the right and from the top down.
pub(super) struct Canvas {
    size: Size2,
    pixels: Vec<[u8; 3]>,
}

type Size2 = embedded_graphics::geometry::Size;

impl Canvas {
    /// All of one colour.
    pub(super) fn new(width: i32, height: i32, background: Rgb888) -> Self {
        let size = Size2::new(width.unsigned_abs(), height.unsigned_abs());
        let pixel = [background.r(), background.g(), background.b()];
        Self { size, pixels: vec![pixel; (size.width * size.height) as usize] }
    }

    /// A line of some pixels' width.
    pub(super) fn line(&mut self, from: Point, to: Point, width: u32, colour: Rgb888) {
        let line = Line::new(from, to).into_styled(PrimitiveStyle::with_stroke(colour, width));
        let Ok(()) = line.draw(self);
    }

    /// Lines from each point to the next.
    pub(super) fn path(&mut self, points: &[Point], colour: Rgb888) {
        for pair in points.windows(2) {
            self.line(pair[0], pair[1], 2, colour);
        }
    }

    /// A line of dashes, from the left to the right.
    pub(super) fn dashes(&mut self, from: Point, to_x: i32, colour: Rgb888) {
        for x in (from.x..to_x).step_by(9) {
            let end = (x + 5).min(to_x);
            self.line(Point::new(x, from.y), Point::new(end, from.y), 1, colour);
        }
    }

    /// A filled rectangle.
    pub(super) fn fill(&mut self, corner: Point, width: i32, height: i32, colour: Rgb888) {
        let size = Size2::new(width.unsigned_abs(), height.unsigned_abs());
        let style = PrimitiveStyle::with_fill(colour);
        let Ok(()) = Rectangle::new(corner, size).into_styled(style).draw(self);
    }

    /// Text whose baseline is at `at`, which is its left end, its middle or its right end.
    pub(super) fn text(
        &mut self,
        text: &str,
        at: Point,
        alignment: Alignment,
        size: Size,
        colour: Rgb888,
    ) {
        let font = match size {
            Size::Small => &FONT_7X13,
            Size::Heading => &FONT_9X15_BOLD,
        };
        let style = MonoTextStyle::new(font, colour);
        let Ok(_) = Text::with_alignment(text, at, style, alignment).draw(self);
    }

    /// Writes it as PNG.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = png::Encoder::new(file, self.size.width, self.size.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::High);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        Ok(writer.finish()?)
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size2 {
        self.size
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Rgb888>>,
    {
        for Pixel(Point { x, y }, colour) in pixels {
            let (width, height) = (self.size.width as i32, self.size.height as i32);
            if (0..width).contains(&x) && (0..height).contains(&y) {
                let at = (y * width + x) as usize;
                self.pixels[at] = [colour.r(), colour.g(), colour.b()];
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_is_left_out() {
        let mut canvas = Canvas::new(4, 3, colour(0));
        canvas.line(Point::new(-5, 1), Point::new(9, 1), 1, colour(0x0A_0B_0C));
        assert_eq!(canvas.pixels[4..8], [[10, 11, 12]; 4]);
        assert_eq!(canvas.pixels[..4], [[0; 3]; 4]);
        assert_eq!(canvas.pixels[8..], [[0; 3]; 4]);
    }
}
