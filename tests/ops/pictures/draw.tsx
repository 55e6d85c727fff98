// Draw a dashboard with Grafana's own components (@grafana/ui), from what Prometheus answered to its queries.
// It is not Grafana: the grid, the way from answers to data frames, and the few transformations that our dashboards use
// are ours. What a panel looks like (axes, legends, thresholds, units, tables, bars) is theirs.

import {
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  renderMarkdown,
  ThemeContext,
  type DataFrame,
  type Field,
  type FieldConfig,
} from "@grafana/data";
import { BarGauge, BigValue, GlobalStyles, PanelChrome, Table, TimeSeries } from "@grafana/ui";
import { createRoot } from "react-dom/client";
import "uplot/dist/uPlot.min.css";

interface Series {
  metric: Record<string, string>;
  value?: [number, string];
  values?: [number, string][];
}

interface Given {
  board: any;
  answers: Record<number, Series[][]>;
  from: number;
  to: number;
  dark: boolean;
}

const given = (window as any).given as Given;
const theme = createTheme({ colors: { mode: given.dark ? "dark" : "light" } });
const range = { from: dateTime(given.from * 1000), to: dateTime(given.to * 1000) };
const timeRange = { ...range, raw: range };

const CELL = 30;
const GAP = 8;
const WIDTH = 1600;

function named(legend: string | undefined, metric: Record<string, string>): string {
  if (legend) {
    return legend.replace(/{{\s*(\w+)\s*}}/g, (_, label) => metric[label] ?? "");
  }
  const labels = Object.entries(metric).filter(([name]) => name !== "__name__");
  return labels.map(([name, value]) => `${name}="${value}"`).join(", ") || "Value";
}

function configured(panel: any, name: string): FieldConfig<any> {
  const defaults = panel.fieldConfig.defaults;
  const config = { ...structuredClone(defaults), custom: { ...structuredClone(defaults.custom ?? {}) } };
  for (const override of panel.fieldConfig.overrides ?? []) {
    const { id, options } = override.matcher;
    if (id === "byName" ? options !== name : !new RegExp(options).test(name)) {
      continue;
    }
    for (const { id: key, value } of override.properties) {
      if (key.startsWith("custom.")) {
        config.custom[key.slice("custom.".length)] = value;
      } else {
        config[key] = value;
      }
    }
  }
  for (const step of config.thresholds?.steps ?? []) {
    step.value ??= -Infinity;
  }
  return config;
}

function shown(field: Field): Field {
  field.display = getDisplayProcessor({ field, theme });
  return field;
}

function numberField(panel: any, name: string, values: number[], index: number): Field {
  const config = configured(panel, name);
  config.displayName = name;
  config.color ??= { mode: panel.type === "timeseries" ? "palette-classic" : "thresholds" };
  return shown({ name, type: FieldType.number, values, config, state: { seriesIndex: index } } as Field);
}

function timeSeries(panel: any, width: number, height: number) {
  const frames: DataFrame[] = [];
  const step = (given.to - given.from) / 300;
  panel.targets.forEach((target: any, index: number) => {
    for (const series of given.answers[panel.id][index]) {
      const known = new Map((series.values ?? []).map(([at, value]) => [Math.round(at / step), parseFloat(value)]));
      const times: number[] = [];
      const values: (number | null)[] = [];
      for (let tick = Math.ceil(given.from / step); tick * step <= given.to; tick++) {
        times.push(tick * step * 1000);
        const value = known.get(tick);
        values.push(value === undefined || Number.isNaN(value) ? null : value);
      }
      const name = named(target.legendFormat, series.metric);
      const time = shown({ name: "time", type: FieldType.time, values: times, config: {} } as Field);
      const field = numberField(panel, name, values as number[], frames.length);
      field.config.custom = { axisPlacement: "auto", lineInterpolation: "linear", ...field.config.custom };
      field.state = { ...field.state, origin: { fieldIndex: 1, frameIndex: frames.length }, multipleFrames: true } as any;
      frames.push({ refId: target.refId, length: times.length, fields: [time, field] });
    }
  });
  if (!frames.length) {
    return <Nothing panel={panel} />;
  }
  return (
    <TimeSeries
      frames={frames}
      width={width}
      height={height}
      timeRange={timeRange as any}
      timeZone="utc"
      legend={panel.options.legend}
      options={panel.options}
      structureRev={1}
    />
  );
}

function latest(panel: any) {
  return panel.targets.flatMap((target: any, index: number) =>
    given.answers[panel.id][index].map((series: Series) => {
      const point = series.value ?? series.values?.[series.values.length - 1];
      return { name: named(target.legendFormat, series.metric), value: parseFloat(point![1]) };
    })
  );
}

function Nothing({ panel }: { panel: any }) {
  return <div style={{ padding: 16, opacity: 0.7 }}>{panel.fieldConfig.defaults.noValue ?? "No data"}</div>;
}

function stat(panel: any, width: number, height: number) {
  const found = latest(panel);
  const field = numberField(panel, panel.title, found.map((one: any) => one.value), 0);
  // Grafana does the same with null where there are no series, colour and all.
  const value = field.display!(found.length ? found[0].value : null);
  return (
    <BigValue
      value={{ ...value, title: "" }}
      width={width}
      height={height}
      theme={theme}
      colorMode={panel.options.colorMode}
      graphMode={"none" as any}
      textMode={"value" as any}
      justifyMode={panel.options.justifyMode}
    />
  );
}

function barGauge(panel: any, width: number, height: number) {
  const found = latest(panel);
  if (!found.length) {
    return <Nothing panel={panel} />;
  }
  const each = Math.min(height / found.length, 60);
  const longest = found.map((one: any) => one.name).reduce((a: string, b: string) => (b.length > a.length ? b : a));
  const most = panel.fieldConfig.defaults.max ?? Math.max(1, ...found.map((one: any) => one.value));
  return (
    <div>
      {found.map((one: any, index: number) => {
        const field = numberField(panel, one.name, [one.value], index);
        field.config.max = most;
        return (
          <BarGauge
            key={one.name}
            value={{ ...field.display!(one.value), title: one.name }}
            field={field.config}
            display={field.display}
            width={width}
            height={each - 4}
            theme={theme}
            displayMode={panel.options.displayMode}
            valueDisplayMode={panel.options.valueMode}
            orientation={panel.options.orientation}
            namePlacement={panel.options.namePlacement}
            showUnfilled={panel.options.showUnfilled}
            text={{ titleSize: 13, valueSize: 15 }}
            alignmentFactors={{ title: longest, text: "00,000 records" }}
          />
        );
      })}
    </div>
  );
}

function table(panel: any, width: number, height: number) {
  const many = panel.targets.length > 1;
  const rows = new Map<string, Record<string, any>>();
  // As the transformation `merge` does: rows are one where the labels that all answers have are alike.
  const answered = given.answers[panel.id].filter((found) => found.length);
  const shared = Object.keys(answered[0]?.[0].metric ?? {}).filter(
    (label) => label !== "__name__" && answered.every((found) => label in found[0].metric)
  );
  panel.targets.forEach((target: any, index: number) => {
    for (const series of given.answers[panel.id][index]) {
      const { __name__: _, ...labels } = series.metric;
      const key = JSON.stringify((many ? shared : Object.keys(labels).sort()).map((label) => labels[label]));
      const row = { ...rows.get(key), ...labels };
      row[many ? `Value #${target.refId}` : "Value"] = parseFloat(series.value![1]);
      rows.set(key, row);
    }
  });
  if (!rows.size) {
    return <Nothing panel={panel} />;
  }
  const organize = panel.transformations.find((found: any) => found.id === "organize").options;
  const columns = Object.keys(organize.indexByName).sort((a, b) => organize.indexByName[a] - organize.indexByName[b]);
  const data = [...rows.values()];
  const sort = panel.options.sortBy?.[0]?.displayName;
  const sorted = columns.find((column) => organize.renameByName[column] === sort);
  if (sorted) {
    const sign = panel.options.sortBy[0].desc ? -1 : 1;
    data.sort((a, b) => sign * (a[sorted] < b[sorted] ? -1 : a[sorted] > b[sorted] ? 1 : 0));
  }
  const fields = columns.map((column, index) => {
    const name = organize.renameByName[column];
    const values = data.map((row) => row[column]);
    if (column.startsWith("Value")) {
      return numberField(panel, name, values, index);
    }
    const config = configured(panel, name);
    return shown({ name, type: FieldType.string, values, config } as Field);
  });
  const frame: DataFrame = { length: data.length, fields: fields.filter((field) => !field.config.custom?.hidden) };
  return <Table data={frame} width={width} height={height} timeRange={timeRange as any} />;
}

function text(panel: any, width: number, height: number) {
  const html = renderMarkdown(panel.options.content);
  const style = { height, overflow: "hidden" };
  return <div className="markdown-html" style={style} dangerouslySetInnerHTML={{ __html: html }} />;
}

const KINDS: Record<string, (panel: any, width: number, height: number) => JSX.Element> = {
  timeseries: timeSeries,
  stat,
  bargauge: barGauge,
  table,
  text,
};

function Board() {
  const unit = (WIDTH + GAP) / 24;
  const bottom = Math.max(...given.board.panels.map((panel: any) => panel.gridPos.y + panel.gridPos.h));
  return (
    <div style={{ position: "relative", width: WIDTH, height: bottom * (CELL + GAP), margin: 16 }}>
      {given.board.panels.map((panel: any) => {
        const { x, y, w, h } = panel.gridPos;
        const width = w * unit - GAP;
        const height = h * (CELL + GAP) - GAP;
        const place = { position: "absolute" as const, left: x * unit, top: y * (CELL + GAP), width, height };
        if (panel.type === "row") {
          return (
            <h4 key={panel.id} style={{ ...place, margin: 0, paddingTop: 4 }}>
              {panel.title}
            </h4>
          );
        }
        return (
          <div key={panel.id} style={place} data-panel={panel.title}>
            <PanelChrome title={panel.title} width={width} height={height} description={panel.description}>
              {(innerWidth, innerHeight) => KINDS[panel.type](panel, innerWidth, innerHeight)}
            </PanelChrome>
          </div>
        );
      })}
    </div>
  );
}

document.body.style.background = theme.colors.background.canvas;
createRoot(document.getElementById("root")!).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <h2 style={{ margin: 16 }}>{given.board.title}</h2>
    <Board />
  </ThemeContext.Provider>
);
