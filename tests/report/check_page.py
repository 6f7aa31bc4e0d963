"""A report in a real browser: it renders, complains about nothing, fetches nothing, can be read on a phone and by a screen reader,
and its timeline zooms, moves and names what is pointed at.

Usage: check_page.py REPORT.html N_CHARTS [FOLDER for screenshots]"""

import json
import sys

from browser import Browser

N_STEPS = 0


def check(condition, what):
    global N_STEPS
    N_STEPS += 1
    if not condition:
        sys.exit("FAILED: " + what)


def check_charts(page, n_charts):
    charts = page.run("""[...document.querySelectorAll("svg.chart")].map((svg) => ({
        role: svg.getAttribute("role"), label: svg.getAttribute("aria-label"), about: svg.querySelector("desc").textContent,
        title: svg.closest("figure").querySelector("h3").textContent, x: svg.querySelector(".lx").textContent,
        y: svg.querySelector(".ly").textContent, marks: svg.querySelectorAll(".line, .bar, .dot").length,
        broken: /NaN|Infinity|\\binf\\b|\\bnan\\b/.test(svg.outerHTML), legend: svg.closest("figure").querySelectorAll(".legend li").length,
        outside: [...svg.querySelectorAll("text, rect, circle, path.line")].filter((e) => {
            const b = e.getBoundingClientRect(), f = svg.getBoundingClientRect();
            return b.left < f.left - 2 || b.right > f.right + 14 || b.top < f.top - 8 || b.bottom > f.bottom + 2; }).length,
        text: Math.min(...[...svg.querySelectorAll("text")].map((t) => parseFloat(getComputedStyle(t).fontSize) * svg.clientWidth / 560))
    }))""")
    check(len(charts) == n_charts - 1, "%d charts instead of %d" % (len(charts), n_charts - 1))
    for chart in charts:
        name = "chart \"%s\": " % chart["title"]
        check(chart["role"] == "img" and chart["label"] == chart["title"] != "", name + "no label for those who do not see it")
        check(len(chart["about"]) > 30, name + "no description")
        check(chart["x"] and chart["y"], name + "an axis without a label")
        check(chart["marks"] > 0 and chart["legend"] > 0, name + "nothing drawn, or no legend")
        check(not chart["broken"], name + "numbers that are none")
        check(chart["outside"] == 0, name + "%d elements outside" % chart["outside"])
        check(chart["text"] > 9, name + "text of %.1f px" % chart["text"])


def timeline_box(page):
    page.run("document.querySelector('figure.timeline').scrollIntoView({behavior: 'instant'})")
    page.settle()
    return page.run("(() => { const b = document.querySelector('canvas').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()")


def visible(page):
    return page.run("(() => { const d = document.querySelector('figure.timeline').dataset; return [+d.from, +d.to]; })()")


def click(page, words):
    page.run("[...document.querySelectorAll('figure.timeline button')].find((b) => b.textContent === %s).click()" % json.dumps(words))
    page.settle()


def events_of(lane):
    """(start, length, name) of every instruction, in ns."""
    start = 0
    for difference, length, word in zip(lane["start"], lane["length"], lane["word"]):
        start += difference
        yield start, length, lane["words"][word]


def check_timeline(page, shots):
    data = json.loads(page.run("document.querySelector('figure.timeline script').textContent"))
    names = [lane["name"] for lane in data["lanes"]]
    is_mlp = "mlp" in page.run("document.querySelector('figure.timeline h3').textContent")
    for name in ("tensor", "vector", "DMA in", "DMA out") + (("scalar",) if is_mlp else ()):
        check(name in names, "no lane " + name)
    check(len(page.run("document.querySelector('canvas').getAttribute('aria-label')")) > 60, "the timeline has no description")
    total = data["total_ns"]
    x, y, width, _ = timeline_box(page)
    check(visible(page) == [0, total], "the timeline does not begin with the whole kernel")

    tensor = list(events_of(data["lanes"][names.index("tensor")]))
    aim = tensor[2 * len(tensor) // 3][0]
    left, plot, lane_y = x + 76, width - 82, y + 9 * len(names) + 14 + 14
    middle = left + aim / total * plot
    for _ in range(12):
        page.mouse("mouseWheel", middle, lane_y, deltaX=0, deltaY=-100)
    low, high = visible(page)
    check(high - low < total / 20, "the wheel does not zoom")
    check(abs(low + (middle - left) / plot * (high - low) - aim) < 0.01 * total, "zooming moves what is under the pointer")

    while high - low > 4000:
        before = high - low
        click(page, "Zoom in")
        low, high = visible(page)
        check(high - low < 0.6 * before, "Zoom in does not")
    start, length, word = min((e for e in tensor), key=lambda e: abs(e[0] + e[1] / 2 - (low + high) / 2))
    for _ in range(200):  # a pixel of a long kernel is longer than the view now
        if low < start and start + length < high:
            break
        click(page, "Later" if start > low else "Earlier")
        low, high = visible(page)
    step = (high - low) / plot
    page.mouse("mouseMoved", left + (start + length / 2 - low) / step, lane_y)
    text = page.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
    check(text == "%s\nstarts at %.3f µs\ntakes %.3f µs" % (word, start / 1000, length / 1000),
          "pointing at %s of %d ns at %d ns shows \"%s\"" % (word, length, start, text))

    if shots:
        page.screenshot(shots + "/report-timeline.png")
    middle = left + plot / 2
    page.mouse("mousePressed", middle, lane_y, button="left", clickCount=1)
    page.mouse("mouseMoved", middle - 100, lane_y, button="left", buttons=1)
    page.mouse("mouseReleased", middle - 100, lane_y, button="left", clickCount=1)
    moved = visible(page)
    check(abs((moved[0] - low) - 100 * step) < 2 * step, "dragging 100 px moves by %.0f ns, expected %.0f" % (moved[0] - low, 100 * step))
    click(page, "Zoom out")
    check(visible(page)[1] - visible(page)[0] > 1.9 * (high - low), "Zoom out does not")
    page.run("document.querySelector('canvas').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
    page.settle()
    check(visible(page) == [0, total], "the key 0 does not show the whole")
    drawn = page.run("""(() => { const c = document.querySelector("canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n / (d.length / 4); })()""")
    check(drawn > 0.05, "the timeline is empty")


def check_shades(page):
    """Behind the instructions that are known one by one, every lane is as busy as its engine was."""
    data = json.loads(page.run("document.querySelector('figure.timeline script').textContent"))
    total, covered = data["total_ns"], data["covered_ns"]
    check(covered < 0.9 * total, "the kernel is too short for this test")
    lane = next(lane for lane in data["lanes"] if lane["name"] == "tensor")
    bins = len(lane["busy"])
    alpha = page.run("""(() => { const c = document.querySelector("canvas"), t = timelines[0], sharp = c.width / c.clientWidth;
        const y = Math.round((t.overviewHeight() + 14) * sharp), row = c.getContext("2d").getImageData(0, y, c.width, 1).data;
        return Array.from({length: %d}, (_, k) => row[4 * Math.round((t.left() + (k + 0.5) / %d * t.plotWidth()) * sharp) + 3] / 255);
        })()""" % (bins, bins))
    checked = gridded = 0
    for k in range(int(covered / total * bins) + 2, bins - 1):
        if len(set(lane["busy"][k - 1:k + 2])) > 1:
            continue  # the pixel may show a neighbour
        check(alpha[k] > lane["busy"][k] / 100 - 0.02, "bin %d is %d %% busy and drawn with %.2f" % (k, lane["busy"][k], alpha[k]))
        gridded += alpha[k] > lane["busy"][k] / 100 + 0.02  # a line of the grid shines through
        checked += 1
    check(checked > 10 and gridded < 0.2 * checked, "%d of %d bins are darker than busy" % (gridded, checked))


def check_tips_and_commands(page):
    spot = page.run("""(() => { const e = document.querySelector(".chart .dot, .chart .bar"); e.scrollIntoView({block: "center", behavior: "instant"});
        const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2, e.dataset.tip]; })()""")
    page.settle()
    page.mouse("mouseMoved", spot[0], spot[1])
    check(page.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent") == spot[2] != "", "a mark does not say its value")
    commands = page.run("[...document.querySelectorAll('.cmd code')].map((c) => c.textContent)")
    check(commands and all(c.strip() for c in commands), "no commands")
    page.run("document.querySelector('.copy').click()")
    page.settle()
    check(page.run("document.querySelector('.copy').textContent === 'Copied' || String(getSelection()).trim() === document.querySelector('.cmd code').textContent.trim()"),
          "Copy neither copies nor selects")
    links = page.run("[...document.querySelectorAll('nav a, .card')].map((a) => a.getAttribute('href'))")
    check(all(page.run("!!document.querySelector(%s)" % json.dumps(link)) for link in links), "a link to a section that is not there")


def brightness(page):
    return page.run("""(() => { const c = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number); return (c[0] + c[1] + c[2]) / 765; })()""")


def check_themes_and_sizes(page, report, shots):
    for width, phone in ((1200, False), (390, True)):
        for dark in (False, True):
            page.view(width, 850, dark, phone)
            page.open(report)
            check((brightness(page) < 0.2) == dark and (brightness(page) > 0.8) != dark, "the page is not %s" % ("dark" if dark else "light"))
            wide = page.run("[document.documentElement.scrollWidth, innerWidth]")
            check(wide[0] <= width and wide[1] == width, "%d px wide: content of %d px" % (width, wide[0]))
            if shots and phone == dark:
                page.screenshot("%s/report-%s-%s.png" % (shots, "phone" if phone else "desktop", "dark" if dark else "light"))
    before = brightness(page)
    page.run("document.getElementById('theme').click()")
    page.settle()
    check(abs(brightness(page) - before) > 0.6, "the button does not change the theme")


def main():
    report, n_charts = sys.argv[1], int(sys.argv[2])
    shots = sys.argv[3] if len(sys.argv) > 3 else None
    page = Browser()
    try:
        page.view(1200, 850, False)
        page.open(report)
        check_charts(page, n_charts)
        if "Only the first are drawn one by one" in page.run("document.querySelector('canvas').textContent"):
            check_shades(page)
            page.open(report)
        check_timeline(page, shots)
        check_tips_and_commands(page)
        page.view(390, 850, False, True)
        page.open(report)
        check_charts(page, n_charts)
        check_themes_and_sizes(page, report, shots)
        check(not page.complaints, "the page complains: %s" % page.complaints)
        check(all(url.startswith(("file:", "data:")) for url in page.requests), "the page fetches %s" % page.requests)
    finally:
        page.close()
    print("%d checks in a browser: ok" % N_STEPS)


main()
