// What a dashboard may consist of, in Grafana's own words: the types of @grafana/schema, with the options of each kind
// of panel put in the places where the schema of a dashboard says nothing. Only the queries of Prometheus are in our
// words: Grafana has published no types of them under a free licence.

import type { DataQuery } from "@grafana/schema/dist/esm/common/common.gen.d.ts";
import type { Options as BarGauge } from "@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen.d.ts";
import type { Options as Stat } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen.d.ts";
import type {
  FieldConfig as TableField,
  Options as Table,
} from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen.d.ts";
import type { Options as Text } from "@grafana/schema/dist/esm/raw/composable/text/panelcfg/x/TextPanelCfg_types.gen.d.ts";
import type {
  FieldConfig as TimeSeriesField,
  Options as TimeSeries,
} from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen.d.ts";
import type {
  AnnotationContainer,
  AnnotationQuery,
  Dashboard,
  FieldConfig,
  FieldConfigSource,
  Panel,
  RowPanel,
} from "@grafana/schema/dist/esm/raw/dashboard/x/dashboard_types.gen.d.ts";

// In JSON the value of an enumeration is its text.
type Plain<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

type Target = Plain<DataQuery> & {
  expr: string;
  instant: boolean;
  range: boolean;
  format?: "time_series" | "table" | "heatmap";
  legendFormat?: string;
};

type Annotations = Omit<Plain<AnnotationContainer>, "list"> & { list: (Plain<AnnotationQuery> & { expr: string })[] };

type PanelOf<Type extends string, Options, Custom> = Omit<Plain<Panel>, "type" | "options" | "fieldConfig" | "targets"> & {
  // Ours have all of these.
  type: Type;
  id: number;
  title: string;
  description: string;
  options: Plain<Options>;
  fieldConfig: Omit<Plain<FieldConfigSource>, "defaults"> & {
    defaults: Omit<Plain<FieldConfig>, "custom"> & { custom?: Plain<Partial<Custom>> };
  };
  targets: Target[];
};

type None = Record<string, never>;

// A text asks nothing and has no fields.
type TextPanel = Omit<PanelOf<"text", Text, None>, "targets" | "fieldConfig">;

export type Checked = Omit<Plain<Dashboard>, "panels" | "annotations"> & {
  annotations: Annotations | None;
  panels: (
    | (Plain<RowPanel> & { type: "row" })
    | PanelOf<"stat", Stat, None>
    | PanelOf<"bargauge", BarGauge, None>
    | PanelOf<"table", Table, TableField>
    | PanelOf<"timeseries", TimeSeries, TimeSeriesField>
    | TextPanel
  )[];
};
