package desk;

import java.util.Arrays;
import org.springframework.ai.tool.ToolCallback;
import org.springframework.ai.tool.ToolCallbackProvider;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

/** Lists the tools of a Toolyard, and calls one of them. No model is needed. */
@SpringBootApplication
public class Desk {
    public static void main(String[] arguments) {
        SpringApplication.run(Desk.class, arguments).close();
    }

    @Bean
    CommandLineRunner desk(ToolCallbackProvider fleet) {
        return arguments -> {
            ToolCallback[] tools = fleet.getToolCallbacks();
            for (ToolCallback tool : tools) {
                System.out.println(tool.getToolDefinition().name());
            }
            ToolCallback clock = Arrays.stream(tools)
                .filter(tool -> tool.getToolDefinition().name().endsWith("get_current_time"))
                .findFirst()
                .orElseThrow();
            System.out.println(clock.call("{\"time_zone\": \"UTC\"}"));
        };
    }
}
