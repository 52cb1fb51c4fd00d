//! The dashboard: one page that needs nothing from elsewhere, put together when the daemon is built.

/// All of the page.
pub(super) const PAGE: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
    "<title>Bindery</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n",
    include_str!("style.css"),
    "</style>\n</head>\n<body>\n",
    include_str!("body.html"),
    "<script>\n\"use strict\";\n",
    include_str!("format.js"),
    include_str!("net.js"),
    include_str!("tip.js"),
    include_str!("chart.js"),
    include_str!("map.js"),
    include_str!("guests.js"),
    include_str!("detail.js"),
    include_str!("checkpoints.js"),
    include_str!("main.js"),
    "</script>\n</body>\n</html>\n",
);
